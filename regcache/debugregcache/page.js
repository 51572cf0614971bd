
"use strict";
(() => {
  const main = document.getElementById("main"), live = document.getElementById("live"), pause = document.getElementById("pause");
  const url = new URL(location.href);
  url.searchParams.set("format", "live");
  url.hash = "";
  const past = new Map(); // key of a count -> rates of the last minutes, oldest first
  let before = null, paused = false, rounds = 0;

  const words = n => n >= 100 ? Math.round(n).toLocaleString("en").replaceAll(",", " ") : n >= 10 ? n.toFixed(0) : n > 0 ? n.toFixed(1) : "0";

  // Rates come from two readings; the page itself has only sums.
  const rates = () => {
    const now = { time: Number(document.getElementById("made").dataset.time), n: new Map() };
    for (const e of main.querySelectorAll("[data-key]")) {
      const key = e.dataset.key, n = Number(e.dataset.n);
      now.n.set(key, n);
      if (before && before.n.has(key) && now.time > before.time) {
        const rate = Math.max(0, n - before.n.get(key)) * 1000 / (now.time - before.time);
        const list = past.get(key) || [];
        list.push(rate);
        if (list.length > 120) list.shift();
        past.set(key, list);
      }
    }
    before = now;
    for (const e of main.querySelectorAll("[data-rate]")) {
      const list = past.get(e.dataset.rate);
      if (list) e.textContent = words(list[list.length - 1]) + "/s";
    }
    for (const e of main.querySelectorAll("[data-spark]")) {
      const list = past.get(e.dataset.spark);
      if (!list || list.length < 2) continue;
      const most = Math.max(...list, 1e-9);
      e.setAttribute("viewBox", "0 0 119 100");
      e.setAttribute("preserveAspectRatio", "none");
      const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      line.setAttribute("points", list.map((r, i) => (120 - list.length + i) + "," + (98 - 96 * r / most).toFixed(1)).join(" "));
      e.replaceChildren(line);
    }
  };

  const refresh = async () => {
    let wait = 1000;
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch(url, { cache: "no-store" });
        if (!answer.ok) throw new Error("status " + answer.status);
        const text = await answer.text();
        if (!paused) {
          const open = [...main.querySelectorAll("details")].map(d => d.open);
          main.innerHTML = text;
          main.querySelectorAll("details").forEach((d, i) => { d.open = open[i] || false; });
          rates();
          live.textContent = "live";
          document.body.dataset.rounds = ++rounds;
        }
        // A page that is left open must not load the process.
        wait = Math.max(1000, 20 * Number(document.getElementById("made").dataset.took));
      } catch (e) {
        live.textContent = "no answer since " + new Date(before.time).toLocaleTimeString() + " (" + e.message + ")";
        wait = 5000;
      }
    }
    setTimeout(refresh, wait);
  };

  pause.hidden = false;
  pause.onclick = () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    live.textContent = paused ? "stands still" : "live";
  };
  rates();
  live.textContent = "live";
  setTimeout(refresh, 1000);
})();
