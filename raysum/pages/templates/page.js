// Highlights the elements that share a note with the one under the pointer; opens all details for printing.
const lights = () => {
  for (const example of document.querySelectorAll(".example")) {
    const notes = (e) => [...e.classList].filter((c) => /^n\d+$/.test(c));
    const all = [...example.querySelectorAll(".s, mark, .cell")].filter((e) => notes(e).length);
    const light = (from) => all.forEach((e) => e.classList.toggle("on", from !== null && (e === from ||
      !(e.tagName === from.tagName && e.tagName !== "MARK") && notes(e).some((n) => from.classList.contains(n)))));
    for (const e of all) {
      for (const on of ["pointerenter", "focus"]) e.addEventListener(on, () => light(e));
      for (const off of ["pointerleave", "blur"]) e.addEventListener(off, () => light(null));
    }
  }
};
lights();
addEventListener("replaced", lights);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((e) => { e.open = true; }));
