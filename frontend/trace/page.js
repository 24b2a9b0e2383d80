(function () {
  var root = document.documentElement, links = Array.from(document.querySelectorAll('.tree a.row'));
  root.classList.add('js');
  function show(id, scroll) {
    document.querySelectorAll('.detail.shown').forEach(function (e) { e.classList.remove('shown'); });
    document.querySelectorAll('.selected').forEach(function (e) { e.classList.remove('selected'); });
    var detail = id && document.getElementById(id);
    if (!detail || !detail.classList.contains('detail')) return;
    detail.classList.add('shown');
    detail.parentNode.scrollTop = 0;
    document.querySelectorAll('a[href="#' + id + '"]').forEach(function (e) {
      e.classList.add('selected');
      var run = e.closest('details.run');
      if (run && e.classList.contains('row')) run.open = true;
      if (scroll && e.classList.contains('row')) e.scrollIntoView({block: 'nearest'});
    });
  }
  document.addEventListener('click', function (event) {
    var link = event.target.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    var id = link.getAttribute('href').slice(1);
    history.replaceState(null, '', '#' + id);
    show(id, link.classList.contains('bar'));
  });
  document.addEventListener('keydown', function (event) {
    var step = {j: 1, k: -1}[event.key];
    if (event.key === 'Escape') return show('');
    if (!step || event.target.matches('input,textarea') || event.metaKey || event.ctrlKey) return;
    var open = links.filter(function (e) { return e.offsetParent !== null; });
    var at = open.findIndex(function (e) { return e.classList.contains('selected'); });
    var next = open[Math.min(open.length - 1, Math.max(0, at + step))];
    if (next) { history.replaceState(null, '', next.hash); show(next.hash.slice(1), true); }
  });
  addEventListener('hashchange', function () { show(location.hash.slice(1), true); });
  var first = document.querySelector('.tree a.row.failed') || document.querySelector('.tree a.row.gen,.tree a.row.select');
  if (location.hash) show(location.hash.slice(1), true);
  else if (first && innerWidth > 1000) show(first.getAttribute('href').slice(1));
})();
