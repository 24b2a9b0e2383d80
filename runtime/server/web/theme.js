// Light or dark, before anything is drawn. "auto" leaves it to the system.
(function () {
  const ORDER = ['auto', 'light', 'dark'];
  const root = document.documentElement;
  let theme = 'auto';
  try { theme = localStorage.getItem('ramet-theme') || 'auto'; } catch { /* private windows may refuse */ }

  function apply(next) {
    theme = ORDER.includes(next) ? next : 'auto';
    if (theme === 'auto') delete root.dataset.theme; else root.dataset.theme = theme;
    for (const button of document.querySelectorAll('[data-theme-button]')) {
      button.textContent = {auto: 'Auto', light: 'Light', dark: 'Dark'}[theme];
      button.setAttribute('aria-label', `Colours: ${theme}. Change`);
    }
    document.dispatchEvent(new Event('themechange'));
  }

  globalThis.rametTheme = {
    next() {
      apply(ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]);
      try { localStorage.setItem('ramet-theme', theme); } catch { /* it lasts as long as the page */ }
      return theme;
    },
  };
  apply(theme);
  document.addEventListener('DOMContentLoaded', () => {
    for (const button of document.querySelectorAll('[data-theme-button]')) {
      button.addEventListener('click', () => globalThis.rametTheme.next());
    }
    apply(theme);
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => apply(theme));
})();
