(() => {
  "use strict";
  const steps = Array.from(document.querySelectorAll(".step"));
  const details = document.getElementById("details-text");
  const moves = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
  let shown = null;
  const show = (step) => {
    if (shown) shown.classList.remove("on");
    shown = step;
    step.classList.add("on");
    details.textContent = step.getAttribute("aria-label");
  };
  const reach = (step) => steps.forEach((other) => other.setAttribute("tabindex", other === step ? "0" : "-1"));
  steps.forEach((step, place) => {
    step.setAttribute("tabindex", place === 0 ? "0" : "-1");
    step.addEventListener("focus", () => { reach(step); show(step); });
    step.addEventListener("mouseenter", () => show(step));
    step.addEventListener("click", () => step.focus({ preventScroll: true }));
    step.addEventListener("keydown", (event) => {
      const move = moves[event.key];
      if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const next = steps[Math.max(0, Math.min(steps.length - 1, place + move))];
      next.focus({ preventScroll: true });
      next.querySelector(".label").scrollIntoView({ block: "center", inline: "nearest" });
    });
  });
})();
