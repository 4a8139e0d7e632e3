// Wide tables scroll: people without a mouse reach them by the Tab key. Material wraps tables after the page has loaded.
document$.subscribe(() =>
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => {
    each.tabIndex = 0;
  }),
);
