// Makes the columns of a table of class `sortable` sort it, by a click or from the keyboard. Without this it is a plain table.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const dated = /^\d{4}-\d\d-\d\d/;
  const amount = (text) => {
    const found = /^[<>~≥≤±]?\s*(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)/i.exec(text);
    return found && !dated.test(text) ? parseFloat(found[1].replaceAll(",", "")) : null;
  };
  const words = (row, column) => (row.cells[column] ? row.cells[column].textContent.trim() : "");
  const sort = (table, column, direction) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => ({row, place, text: words(row, column)}));
    const numeric = rows.every(({text}) => text === "–" || text === "" || amount(text) !== null);
    const compare = (a, b) => {
      const [left, right] = numeric ? [amount(a.text), amount(b.text)] : [a.text, b.text];
      if (numeric) {
        if (left === null || right === null) return (left === null) - (right === null) || a.place - b.place; // none last
        return direction * (left - right) || a.place - b.place;
      }
      return direction * left.localeCompare(right, "en", {numeric: !dated.test(left)}) || a.place - b.place;
    };
    body.append(...rows.sort(compare).map(({row}) => row));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    if (!table.tHead || !table.tBodies.length || table.tBodies[0].rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sort(table, column, down ? -1 : 1);
      });
    });
  }
});
