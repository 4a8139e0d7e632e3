// Wide tables scroll: people without a mouse reach them by the Tab key. Material wraps tables after the page has loaded.
document$.subscribe(() =>
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => {
    each.tabIndex = 0;
  }),
);
// The theme makes a landmark of each copy button, all with one name.
new MutationObserver(() =>
  document.querySelectorAll("nav.md-code__nav:not([role])").forEach((each) => each.setAttribute("role", "none")),
).observe(document.body, { childList: true, subtree: true });
