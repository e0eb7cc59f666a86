// Times in the viewer's zone, and fresh pages after a change. Every page works without this file.
"use strict";
(() => {
  const SHOWN = {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  };
  const localise = (root) => {
    for (const one of root.querySelectorAll("time[datetime]")) {
      const at = new Date(one.getAttribute("datetime"));
      if (!Number.isNaN(at.getTime())) {
        one.title = one.textContent;
        one.textContent = at.toLocaleString(undefined, SHOWN);
      }
    }
  };
  localise(document);
  const main = document.querySelector("main[data-live]");
  if (!main || !window.EventSource) return;
  const isInUse = () =>
    main.contains(document.activeElement) && document.activeElement.matches("input, select, button, summary, a");
  const refresh = async () => {
    if (isInUse()) return;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (!fresh || isInUse()) return;
    localise(fresh);
    main.replaceChildren(...fresh.childNodes);
  };
  const stream = new EventSource(`/events?since=${encodeURIComponent(main.dataset.live)}`);
  stream.addEventListener("changed", () => refresh().catch(() => undefined));
  window.addEventListener("pagehide", () => stream.close());
})();
