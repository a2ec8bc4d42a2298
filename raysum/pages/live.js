// Looks for a newer page until one says that it is the last: fetched from a server, reloaded from a disk.
{
  const late = 60; // seconds after which a page that should have been written anew is called stale
  const all = (what) => [...document.querySelectorAll(what)];
  const kept = () => ({
    y: scrollY, x: all(".wide").map((e) => e.scrollLeft),
    open: Object.fromEntries(all("details").map((e) => [e.querySelector("summary").textContent, e.open])),
  });
  const restore = (state) => {
    all("details").forEach((e) => { e.open = state.open[e.querySelector("summary").textContent] ?? e.open; });
    all(".wide").forEach((e, at) => { e.scrollLeft = state.x[at] ?? 0; });
    scrollTo({ top: state.y, behavior: "instant" });
  };
  const stale = () => { document.querySelector(".stale").hidden = Date.now() / 1000 - document.body.dataset.written < late; };
  const fetched = async () => {
    try {
      const answer = await fetch(location.href);
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html"), state = kept();
      for (const part of ["header", "main", "footer"]) document.querySelector(part).replaceWith(page.querySelector(part));
      for (const name of ["every", "written"]) {
        if (name in page.body.dataset) document.body.dataset[name] = page.body.dataset[name];
        else delete document.body.dataset[name];
      }
      restore(state);
      dispatchEvent(new Event("replaced"));
    } catch { /* the server has gone: the page says so when it is late */ }
  };
  const again = async () => {
    const every = document.body.dataset.every;
    if (!every) return;
    stale();
    if (!document.hidden && getSelection().isCollapsed) {
      if (location.protocol === "file:") {
        history.replaceState(kept(), "");
        location.reload();
        return;
      }
      await fetched();
    }
    setTimeout(again, 1000 * every);
  };
  if (history.state?.open) restore(history.state);
  stale();
  setTimeout(again, 1000 * document.body.dataset.every);
}
