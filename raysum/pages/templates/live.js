// Updates the page until a version without data-every arrives: by fetch from a server, by reload from a disk.
{
  const late = 60; // seconds without a new version after which the page is called stale
  const all = (selector) => [...document.querySelectorAll(selector)];
  const viewState = () => ({
    y: scrollY, x: all(".wide").map((e) => e.scrollLeft),
    open: Object.fromEntries(all("details").map((e) => [e.querySelector("summary").textContent, e.open])),
  });
  const restore = (state) => {
    all("details").forEach((e) => { e.open = state.open[e.querySelector("summary").textContent] ?? e.open; });
    all(".wide").forEach((e, at) => { e.scrollLeft = state.x[at] ?? 0; });
    scrollTo({ top: state.y, behavior: "instant" });
  };
  const stale = () => { document.querySelector(".stale").hidden = Date.now() / 1000 - document.body.dataset.written < late; };
  const update = async () => {
    try {
      const response = await fetch(location.href);
      if (!response.ok) return;
      const page = new DOMParser().parseFromString(await response.text(), "text/html"), state = viewState();
      for (const part of ["header", "main", "footer"]) document.querySelector(part).replaceWith(page.querySelector(part));
      for (const name of ["every", "written"]) {
        if (name in page.body.dataset) document.body.dataset[name] = page.body.dataset[name];
        else delete document.body.dataset[name];
      }
      restore(state);
      dispatchEvent(new Event("replaced"));
    } catch { /* the server has ended: the page will show that it is stale */ }
  };
  const tick = async () => {
    const every = document.body.dataset.every;
    if (!every) return;
    stale();
    if (!document.hidden && getSelection().isCollapsed) {
      if (location.protocol === "file:") {
        history.replaceState(viewState(), "");
        location.reload();
        return;
      }
      await update();
    }
    setTimeout(tick, 1000 * every);
  };
  if (history.state?.open) restore(history.state);
  stale();
  setTimeout(tick, 1000 * document.body.dataset.every);
}
