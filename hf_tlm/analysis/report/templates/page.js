"use strict";
(() => {
  // Light or dark: as the system has it, until the button is pressed.
  const root = document.documentElement, theme = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const show = () => {
    theme.textContent = dark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", dark() ? "Switch to light" : "Switch to dark");
  };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();

  // Rows with every word of the search, in any column.
  for (const input of document.querySelectorAll("input[data-table]")) {
    const rows = [...document.getElementById(input.dataset.table).tBodies[0].rows];
    const output = input.parentElement.querySelector("output"), total = `${rows.length} ${rows.length === 1 ? "row" : "rows"}`;
    let texts;
    input.parentElement.hidden = false;
    input.addEventListener("input", () => {
      texts ??= rows.map(row => [...row.cells].map(cell => cell.textContent).join("\n").toLowerCase());
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let found = 0;
      rows.forEach((row, at) => {
        const fits = words.every(word => texts[at].includes(word));
        row.hidden = !fits;
        found += fits;
      });
      output.textContent = words.length ? `${found} of ${total}` : total;
    });
  }

  // A click on a column's name sorts by it, another one the other way round; numbers start with the largest.
  const compare = new Intl.Collator(undefined, { numeric: true }).compare;
  for (const table of document.querySelectorAll("table:not(.matrix)")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    if (body.rows.length < 2) continue;
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const numbers = head.classList.contains("n");
        const down = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numbers;
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const keyed = [...body.rows].map(row => [row.cells[at].dataset.v ?? row.cells[at].textContent, row]);
        const empty = key => key === "";
        keyed.sort(([a], [b]) => empty(a) || empty(b) ? empty(a) - empty(b)
          : (down ? -1 : 1) * (numbers ? a - b : compare(a, b)));
        body.append(...keyed.map(([, row]) => row));
      });
    });
  }
})();
