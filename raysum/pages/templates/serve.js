// The page of `raysum serve`: sends documents, and shows the summary as it grows, beside its sources. Texts become text
// nodes only; the page's policy forbids everything else. The server counts characters, JavaScript UTF-16 units, so a
// text with others than those of one unit is an array of its characters (`chars`).
const $ = (id) => document.getElementById(id);
const make = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const hidden = (text) => make("span", { class: "vh" }, text);
const chars = (text) => /[\ud800-\udfff]/.test(text) ? [...text] : text;
const cut = (text, start, end) => typeof text === "string" ? text.slice(start, end) : text.slice(start, end).join("");
const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
const motion = () => matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
const say = (message) => { $("status").textContent = message; };
const complain = (place, ...messages) => $(place).replaceChildren(...messages.map((message) => make("p", {}, message)));

// Documents

const limits = $("form").dataset;
const cards = () => [...$("documents").children];
const textOf = (card) => card.querySelector(".text");

const number = () => {
  cards().forEach((card, at) => {
    card.querySelector("legend").textContent = `Document ${at + 1}`;
    card.querySelector(".remove").setAttribute("aria-label", `Remove document ${at + 1}`);
    card.querySelector(".remove").hidden = cards().length === 1;
  });
  $("count").textContent = plural(cards().filter(isFilled).length, "text");
};

const files = new WeakMap();  // the content of a card that is an uploaded file, in base64
const isFilled = (card) => files.has(card) || textOf(card).value.trim();

const add = (name = "", { text = "", data = null } = {}) => {
  const empty = cards().find((card) => (text || data) && !isFilled(card));
  const card = empty ?? $("document").content.cloneNode(true).firstElementChild;
  card.querySelector(".name").value = name;
  textOf(card).value = text;
  if (data) {
    files.set(card, data);
    card.querySelector(".name").readOnly = textOf(card).readOnly = true;
    textOf(card).placeholder = "The server reads this file. Its text appears here with the summary.";
  }
  if (!empty) {
    $("documents").append(card);
    card.querySelector(".remove").addEventListener("click", () => {
      const next = card.nextElementSibling ?? card.previousElementSibling;
      card.remove();
      number();
      textOf(next).focus();
    });
  }
  number();
  return card;
};

// What a text does not begin with: PDF, ZIP (Word, EPUB), RTF, HTML and XML
const MARKED = /^(%PDF|PK\x03\x04|\{\\rtf|\s*(<!doctype html|<html|<\?xml))/i;
const suffixes = limits.suffixes.split(" ");

const read = async (file) => {  // a file as { text }, or as { data } in base64, whose text the server reads
  if (file.size > limits.maxBody) throw new Error(`${file.name} is larger than ${limits.maxBody} bytes, the server's --max-body`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const encoding = { fffe: "utf-16le", feff: "utf-16be" }[[...bytes.subarray(0, 2)].map((byte) => byte.toString(16)).join("")];
  try {
    const text = new TextDecoder(encoding ?? "utf-8", { fatal: true }).decode(bytes);
    if (!text.trim()) throw new Error(`${file.name} has no text`);
    const isText = !text.includes("\0") && !MARKED.test(text) && !suffixes.some((end) => file.name.toLowerCase().endsWith(end));
    if (isText) return { text };
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  return { data: url.slice(url.indexOf(",") + 1) };
};

const take = async (files) => {
  const problems = [];
  let taken = 0;
  $("input").open = true;
  for (const file of files) {
    try {
      add(file.name, await read(file));
      taken += 1;
    } catch (error) {
      problems.push(error instanceof DOMException ? `${file.name} cannot be read: ${error.message}` : error.message);
    }
  }
  complain("problems", ...problems);
  if (taken) say(`${plural(taken, "file")} added`);
};

$("add").addEventListener("click", () => textOf(add()).focus());
$("choose").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async () => {
  await take([...$("files").files]);
  $("files").value = "";
});
$("documents").addEventListener("input", number);
const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
addEventListener("dragover", (event) => {
  if (holdsFiles(event)) event.preventDefault();
  document.body.classList.toggle("over", holdsFiles(event));
});
addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
addEventListener("drop", (event) => {
  document.body.classList.remove("over");
  if (!holdsFiles(event)) return;
  event.preventDefault();
  take([...event.dataTransfer.files]);
});
addEventListener("paste", (event) => {
  if (event.clipboardData.files.length && !event.clipboardData.types.includes("text/plain")) take([...event.clipboardData.files]);
});
add();

// Settings, which a link restores from its fragment

const controls = [...$("settings").querySelectorAll("input, select")];  // those of other models are disabled
const own = new Map(controls.map((control) => [control, control.value]));  // the values of the server
const changed = () => controls.filter((control) => !control.disabled && control.value !== own.get(control) && control.value !== "");
const MODELS = ["model", "rival"];  // the names of what is no option
const picked = (name) => controls.find((control) => control.name === name)?.value ?? "";
const showControls = () => {
  for (const field of $("settings").querySelectorAll("[data-model]")) {
    field.hidden = picked("model") !== "" && field.dataset.model !== picked("model");
    field.querySelector("input, select").disabled = field.hidden;
  }
};
const restore = () => {
  const values = new URLSearchParams(location.hash.slice(1));
  for (const control of controls) {
    control.value = values.get(control.name) ?? own.get(control);
    if (!control.checkValidity() || control.selectedIndex === -1) control.value = own.get(control);
  }
  showControls();
};
restore();
addEventListener("hashchange", restore);
$("settings").addEventListener("input", () => {
  showControls();
  const values = new URLSearchParams(changed().map((control) => [control.name, control.value]));
  history.replaceState(null, "", `${location.pathname}${location.search}${values.size ? `#${values}` : ""}`);
});

// The request

let running = null, shown = null, rival = null;  // its AbortController; its request, events and result; those of another model

const saved = (key) => {  // the key, kept for this tab; browsers may forbid storage
  try {
    if (key) sessionStorage.setItem("raysum-key", key);
    return sessionStorage.getItem("raysum-key") ?? "";
  } catch {
    return key;
  }
};

const asked = () => {
  const filled = cards().filter(isFilled);
  const documents = filled.map((card) => {
    const source = card.querySelector(".name").value.trim();
    const content = files.has(card) ? { data: files.get(card) } : { text: textOf(card).value };
    return source ? { source, ...content } : content;
  });
  const chosen = changed().filter((control) => !MODELS.includes(control.name));
  const options = chosen.map((control) => [control.name, control.type === "number" ? Number(control.value) : control.value]);
  const model = picked("model") && { model: picked("model") };
  return { cards: filled, body: { title: $("title").value.trim(), documents, options: Object.fromEntries(options), ...model } };
};

const excess = (body, text) => {  // why the server would refuse it, else an empty string
  const size = new Blob([text]).size, length = body.documents.reduce((sum, each) => sum + chars(each.text ?? "").length, 0);
  for (const [found, most, what, name] of [
    [body.documents.length, limits.maxDocuments, "documents", "documents"],
    [length, limits.maxCharacters, "characters", "characters"], [size, limits.maxBody, "bytes", "body"],
  ]) if (found > most) return `${found} ${what} exceed ${most}, the server's --max-${name}: remove a part of the documents.`;
  return "";
};

async function* eventsOf(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    const parts = (rest + decoder.decode(value, { stream: !done })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [, event, data] = part.match(/^event: (.*)\ndata: (.*)$/) ?? [];
      if (event) yield [event, JSON.parse(data)];  // the rest are comments, which keep a connection open
    }
    if (done) return;
  }
}

const fieldOf = (message, filled) => {  // the field that an error of the server is about
  const [, option] = message.match(/^options\.(\w+)/) ?? [], [, at] = message.match(/^documents\.(\d+)/) ?? [];
  if (option) return controls.find((control) => control.name === option && !control.disabled);
  if (at) return filled[at] && (message.includes("source") ? filled[at].querySelector(".name") : textOf(filled[at]));
  return message.startsWith("title:") ? $("title") : null;
};

const fail = (message, field = null) => {
  complain("error", message);
  say("");
  if (!field) return;
  field.closest("details")?.setAttribute("open", "");
  field.setAttribute("aria-invalid", "true");
  field.focus();
};

const refuse = async (response, filled) => {
  let message = `The server answered ${response.status}. Try again later.`;
  try {
    message = (await response.json()).error ?? message;
  } catch { /* a gateway answered */ }
  const wait = response.headers.get("Retry-After");
  if (response.status === 401) {
    $("access").hidden = false;
    message = $("key").value ? `${message}: enter another one.` : "This server needs a key. Enter the one that its operator gave you.";
  }
  fail(wait ? `${message} (try again in ${wait} s)` : message, response.status === 401 ? $("key") : fieldOf(message, filled));
};

const busy = (is) => {
  $("submit").setAttribute("aria-disabled", is);
  if (!is && document.activeElement === $("stop")) $("submit").focus();
  $("stop").hidden = !is;
  $("result").setAttribute("aria-busy", is);
  $("summary").classList.toggle("growing", is);
};

const send = async () => {
  const { cards: filled, body } = asked(), text = JSON.stringify(body);
  complain("error");
  document.querySelectorAll("[aria-invalid]").forEach((field) => field.removeAttribute("aria-invalid"));
  if (!filled.length) return fail("Enter the text of a document, or choose a file.", textOf(cards()[0]));
  if (excess(body, text)) return fail(excess(body, text));
  const key = saved($("key").value), headers = { "Content-Type": "application/json", ...key && { Authorization: `Bearer ${key}` } };
  running = new AbortController();
  busy(true);
  say("Sending the documents");
  const ask = (request) => fetch("v1/summarize/stream", { method: "POST", headers, body: request, signal: running.signal });
  try {
    const response = await ask(text);
    if (!response.ok) return await refuse(response, filled);
    $("access").hidden = true;
    $("input").open = false;
    rival = null;
    shown = { body, cards: filled, sentences: [], places: [], result: null };
    for await (const [event, data] of eventsOf(response)) {
      if (event === "error") return fail(data.error, fieldOf(data.error, filled));
      show[event]?.(data);
    }
    if (!shown.result) return fail("The server closed the connection before the summary was complete. Try again.");
    if (picked("rival")) await compare(ask, picked("rival"));
  } catch (error) {
    if (error.name === "AbortError") say("Stopped");
    else fail("The connection to the server failed. Check that it runs, then try again.");
  } finally {
    busy(false);
    running = null;
  }
};

const compare = async (ask, model) => {  // with the summary of another model, of the same documents
  const ready = $("status").textContent;
  say(`${model} summarizes the same documents`);
  const documents = shown.body.documents.map(({ text, data, ...rest }) => data ? { ...rest, data } : { ...rest, text });
  const response = await ask(JSON.stringify({ ...shown.body, documents, options: {}, model }));
  if (!response.ok) return refuse(response, shown.cards);
  const other = { ...shown, body: { ...shown.body, model }, sentences: [], places: [], result: null };
  for await (const [event, data] of eventsOf(response)) {
    if (event === "error") return fail(`${model}: ${data.error}`);
    if (event === "reading") other.places = data.places;
    if (event === "result") Object.assign(other, { sentences: data.sentences, result: data });
  }
  if (!other.result) return fail(`The server closed the connection before the summary of ${model} was complete. Try again.`);
  rival = other;
  showRival();
  say(`${ready}; that of ${model} is beside it`);
};

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) send();
});
$("stop").addEventListener("click", () => running?.abort());
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !running) $("form").requestSubmit();
});

// The answer, event by event

const show = {
  queued: ({ position }) => {
    Object.assign(shown, { sentences: [], places: [], result: null });
    $("result").hidden = false;
    $("copies").hidden = true;
    for (const id of ["summary", "selected", "remarks"]) $(id).replaceChildren();
    showRival();
    showSources();
    if ($("result").getBoundingClientRect().top > 0.6 * innerHeight) $("result").scrollIntoView({ behavior: motion() });
    say(position ? `Waiting for ${plural(position, "request")}` : "Reading the documents");
  },
  files: ({ texts }) => {
    for (const [at, text] of Object.entries(texts)) shown.body.documents[at].text = textOf(shown.cards[at]).value = text;
    showSources();
  },
  reading: ({ paragraphs, tokens, places }) => {
    shown.places = places;
    say(`Reading ${plural(paragraphs, "paragraph")} with ${plural(tokens, "token")}`);
  },
  prefix: ({ text }) => {
    if (!$("summary").textContent) say("Writing");
    $("summary").textContent = text;
  },
  sentence: (sentence) => {
    shown.sentences.push(sentence);
    showSentences();
  },
  result: (summary) => {
    Object.assign(shown, { sentences: summary.sentences, result: summary });
    if (summary.sentences.length) showSentences();
    else $("summary").textContent = summary.summary;
    showSources();
    showRemarks(summary);
    $("copies").hidden = false;
    const cited = notes().length ? ` with ${plural(notes().length, "cited passage")}` : "";
    say(`The summary is ready: ${plural(summary.sentences.length, "sentence")}${cited}`);
  },
};

const passage = ({ document, start, end }) => `${document} ${start} ${end}`;
const notes = () => {  // the cited passages, each once: note 1, note 2, and so on
  const cited = shown.sentences.flatMap((sentence) => sentence.citations);
  return [...new Map(cited.map((each) => [passage(each), each])).values()];
};
const numbers = (sentence) => {
  const all = notes().map(passage);
  return sentence.citations.map((each) => all.indexOf(passage(each)) + 1);
};
const nameOf = (at) => shown.body.documents[at]?.source || `Document ${at + 1}`;
const gap = (sentence, at) => at && sentence.start > shown.sentences[at - 1].end ? " " : "";
const spread = (share) => share === null ? "" : `; support ${percent(share)}`;

const doubted = (sentence) => {  // its text, with the names and numbers that no source has
  const text = chars(sentence.text), parts = [];
  let done = 0;
  for (const { start, end } of sentence.unsupported) {
    const title = "in no source";
    parts.push(cut(text, done, start), make("span", { class: "u", title }, cut(text, start, end)), hidden(` (${title})`));
    done = end;
  }
  return [...parts, cut(text, done)];
};

const pressable = (tag, own, ...children) => {  // selects what it cites or is cited by
  const element = make(tag, { role: "button", tabindex: 0, "aria-pressed": false, ...own }, ...children);
  element.addEventListener("click", () => { if (getSelection().isCollapsed) select(element.closest("[data-notes]")); });
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    select(element.closest("[data-notes]"));
  });
  return element;
};

const jump = (number, label, selector) => {  // a small button that selects its surroundings and moves the focus
  const button = make("button", { type: "button", "aria-label": label }, `[${number}]`);
  button.addEventListener("click", () => {
    select(button.closest("[data-notes]"), true);
    [...document.querySelectorAll(selector)].find((e) => e.dataset.notes.split(" ").includes(`${number}`))?.querySelector("[role=button]").focus();
  });
  return button;
};

const showSentences = () => {
  $("summary").replaceChildren(...shown.sentences.flatMap((sentence, at) => {
    const cited = numbers(sentence);
    const links = cited.map((number) => jump(number, `Go to passage ${number}`, ".passage"));
    const claim = pressable("span", { class: "claim" }, ...doubted(sentence));
    return [gap(sentence, at), make("span", { class: "s", "data-notes": cited.join(" "), "data-at": at }, claim, make("sup", {}, ...links))];
  }));
};

const showSources = () => {
  const { attention = [], predicted = [] } = shown.result ?? {};
  const all = notes(), top = Math.max(...attention, ...predicted, 1e-9);
  $("sources").classList.toggle("plain", !shown.places.length);
  const legend = predicted.length ? [make("p", { class: "note" }, "Bars: the share of the attention; the thin one is what the attention predictor expects")] : [];
  $("sources").replaceChildren(make("h2", {}, "Sources"), ...legend, ...shown.body.documents.flatMap((document, at) => {
    const text = chars(document.text ?? ""), parts = [];
    const cited = all.map((note, index) => ({ ...note, number: index + 1 })).filter((note) => note.document === at);
    const read = shown.places.map((place, rank) => ({ ...place, rank })).filter((place) => place.document === at);
    let done = 0;
    for (const { start, end, rank } of read.sort((one, other) => one.start - other.start)) {
      parts.push(...lines(text, done, start).map(([from, to]) => paragraph(text, from, to, cited, null, top)));
      parts.push(paragraph(text, start, end, cited, attention[rank] ?? null, top, predicted[rank] ?? null));
      done = Math.max(done, end);
    }
    const unread = lines(text, done, text.length).map(([from, to]) => paragraph(text, from, to, cited, null, top));
    return [make("h3", { dir: "auto" }, nameOf(at)), ...parts, ...unread];
  }));
};

const lines = (text, from, to) => {  // the positions of lines with text
  const found = [];
  while (from < to) {
    const at = text.indexOf("\n", from), end = at < 0 || at > to ? to : at, line = cut(text, from, end);
    if (line.trim()) found.push([from + chars(line).length - chars(line.trimStart()).length, end]);
    from = end + 1;
  }
  return found;
};

const bar = (share, top, kind) => {
  const fill = make("i", {});
  fill.style.setProperty("--share", share / top);
  return make("span", { class: kind, "aria-hidden": true }, fill);
};

const paragraph = (text, start, end, cited, share, top, hat = null) => {
  const body = make("p", { dir: "auto" }, ...marked(text, start, end, cited));
  const known = shown.places.length && shown.result;
  if (!shown.places.length) return make("div", { class: "para" }, body);
  if (share === null) return make("div", { class: known ? "para unread" : "para" }, make("div", { class: "share" }, known ? "not read" : ""), body);
  const expected = hat === null ? [] : [hidden(`, ${percent(hat)} predicted`), bar(hat, top, "bar hat")];
  return make("div", { class: "para" }, make("div", { class: "share" }, percent(share), hidden(" of the attention"), bar(share, top, "bar"), ...expected), body);
};

const marked = (text, start, end, cited) => {  // the characters from start to end, with the cited passages
  const clipped = cited.map((note) => ({ ...note, start: Math.max(note.start, start), end: Math.min(note.end, end) })).filter((note) => note.start < note.end);
  const edges = [...new Set([start, end, ...clipped.flatMap((note) => [note.start, note.end])])].sort((one, other) => one - other);
  return edges.slice(1).flatMap((to, at) => {
    const from = edges[at], here = clipped.filter((note) => note.start <= from && to <= note.end), piece = cut(text, from, to);
    if (!here.length) return [piece];
    const own = here.map((note) => note.number), ended = here.filter((note) => note.end === to);
    const links = ended.map(({ number }) => jump(number, `Go to the sentence that cites passage ${number}`, ".s"));
    return [make("span", { class: "passage", "data-notes": own.join(" ") }, pressable("mark", {}, piece), make("sup", {}, ...links))];
  });
};

const showRemarks = ({ model, support, unsupported, warnings }) => {
  const missing = unsupported.map((span) => span.text).join(", "), by = model.system ?? `the run ${model.run}, step ${model.step}`;
  const supported = support === null ? "" : `; support ${Math.round(support)} of 100${missing ? `; in no source: ${missing}` : ""}`;
  const remarks = warnings.map((warning) => make("p", { class: "warning", dir: "auto" }, warning));
  $("remarks").replaceChildren(make("p", { class: "note" }, `Written by ${by}${supported}`), ...remarks);
};

const showRival = () => {  // the summary of the other model, as plain text; its passages can be shown instead
  $("heading").textContent = rival ? `Summary by ${shown.body.model}` : "Summary";
  $("rival").hidden = !rival;
  $("pair").classList.toggle("two", Boolean(rival));
  if (!rival) return;
  $("rival-heading").textContent = `Summary by ${rival.body.model}`;
  $("rival-summary").textContent = rival.result.summary;
};
$("swap").addEventListener("click", () => {
  [shown, rival] = [rival, shown];
  showSentences();
  showSources();
  showRemarks(shown.result);
  showRival();
  $("selected").textContent = "";
  say(`The sources of the summary by ${shown.body.model} are shown`);
});

// Selection: a sentence and the passages that it cites, or a passage and the sentences that cite it

const select = (from, stays = false) => {
  const parts = [...document.querySelectorAll("#result [data-notes]")], wanted = from?.dataset.notes.split(" ") ?? [];
  const again = from?.querySelector("[aria-pressed=true]") && !stays, kind = from?.classList[0];
  const lit = parts.filter((e) => from && !again && (e === from || e.classList[0] !== kind && e.dataset.notes.split(" ").some((n) => wanted.includes(n))));
  for (const part of parts) {
    for (const e of [part, part.querySelector("mark")]) e?.classList.toggle("on", lit.includes(part));
    part.querySelector("[role=button]").setAttribute("aria-pressed", part === from && !again);
  }
  $("selected").textContent = lit.length ? described(from, kind) : "";
  lit.find((e) => e !== from)?.scrollIntoView({ block: kind === "s" ? "center" : "nearest", behavior: motion() });
};

const described = (from, kind) => {
  const all = notes(), wanted = from.dataset.notes.split(" ").filter(Boolean);
  if (kind !== "s") {
    const citing = shown.sentences.flatMap((each, at) => numbers(each).some((n) => wanted.includes(`${n}`)) ? [at + 1] : []);
    return `Passage ${wanted.join(", ")} is cited by sentence ${citing.join(", ")}`;
  }
  const sentence = shown.sentences[from.dataset.at], cited = wanted.map((n) => `[${n}] ${nameOf(all[n - 1].document)}`).join(", ");
  return `Sentence ${Number(from.dataset.at) + 1} cites ${cited || "no passage"}${spread(sentence.support)}`;
};

addEventListener("keydown", (event) => { if (event.key === "Escape") select(null); });

// Copies

const footnoted = () => {
  const plain = (text) => text.replace(/[\\`*_[\]<>#|]/g, "\\$&").replace(/\s+/g, " ");
  const text = shown.sentences.map((sentence, at) => `${gap(sentence, at)}${plain(sentence.text)}${numbers(sentence).map((n) => `[^${n}]`).join("")}`).join("");
  return [text, "", ...notes().map((note, at) => `[^${at + 1}]: ${plain(nameOf(note.document))}: "${plain(note.quote)}"`)].join("\n").trim() + "\n";
};
const FORMS = { text: () => shown.result.summary, markdown: footnoted, json: () => JSON.stringify(shown.result, null, 2) };

const copy = async (text, what) => {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
  } catch {  // without https, or forbidden
    const area = make("textarea", { class: "vh", "aria-hidden": true });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    say(document.execCommand("copy") ? `${what} copied` : "The browser does not allow copying: select the text and copy it by hand");
    area.remove();
    focused?.focus();
  }
};
$("copies").addEventListener("click", ({ target }) => {
  if (target.dataset.copy) copy(FORMS[target.dataset.copy](), target.textContent.replace("Copy ", "").replace("text", "Text"));
});
$("link").addEventListener("click", () => copy(location.href, "Link"));
