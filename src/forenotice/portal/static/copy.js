// Buttons that copy what a field shows. Without scripts, or where there is no clipboard, the field is copied by hand.

for (const button of document.querySelectorAll("button[data-copy]")) {
  const field = document.getElementById(button.dataset.copy);
  const told = button.parentElement.querySelector("[data-copied]");
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(field.value);
      told.textContent = "Copied.";
    } catch {
      field.select();
      told.textContent = "The browser does not let this page copy: press Ctrl-C.";
    }
  });
  field.addEventListener("focus", () => field.select());
  if (document.activeElement === field) field.select();
}
