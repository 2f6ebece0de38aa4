'use strict';
const page = (() => {
const byId = id => document.getElementById(id);
const tip = byId('tip'), live = byId('live');
const result = () => byId('result').textContent;
// Titles are for readers without this script; with it they are shown at once, and by keys, too.
const words = new WeakMap();
const marks = new Map();
for (const picture of document.querySelectorAll('svg[data-keys]')) {
const found = [];
for (const title of picture.querySelectorAll('title')) {
words.set(title.parentNode, title.textContent);
found.push(title.parentNode);
title.remove();
}
marks.set(picture, found);
picture.tabIndex = 0;
}
let shown = null;
const hide = () => {
if (shown) shown.classList.remove('mark');
shown = null;
tip.hidden = true;
};
const place = (x, y) => {
const box = tip.getBoundingClientRect();
tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + 'px';
tip.style.top = (y + 20 + box.height > innerHeight ? y - box.height - 12 : y + 18) + 'px';
};
// Text beside a place that is no mark.
const say = (text, x, y) => {
if (shown) hide();
tip.textContent = text;
tip.hidden = false;
place(x, y);
};
const show = (mark, x, y) => {
if (shown !== mark) {
hide();
shown = mark;
mark.classList.add('mark');
tip.textContent = words.get(mark);
tip.hidden = false;
}
place(x, y);
};
document.addEventListener('pointermove', event => {
if (words.has(event.target)) show(event.target, event.clientX, event.clientY);
else if (shown && event.pointerType !== 'touch') hide();
});
document.addEventListener('pointerdown', event => {
if (words.has(event.target)) show(event.target, event.clientX, event.clientY);
else hide();
});
addEventListener('scroll', hide, { passive: true });
for (const [picture, found] of marks) {
let at = -1;
picture.addEventListener('keydown', event => {
const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
if (event.key === 'Escape') { hide(); return; }
if (event.key === 'Home') at = 0;
else if (event.key === 'End') at = found.length - 1;
else if (by) at = Math.max(0, Math.min(found.length - 1, at + by));
else return;
event.preventDefault();
const mark = found[at], box = mark.getBoundingClientRect();
show(mark, box.left + box.width / 2, box.bottom - 10);
live.textContent = words.get(mark);
});
picture.addEventListener('blur', hide);
}
byId('tools').hidden = false;
byId('save').addEventListener('click', () => {
const link = document.createElement('a');
link.href = URL.createObjectURL(new Blob([result() + '\n'], { type: 'application/json' }));
link.download = 'strata.json';
link.click();
setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
byId('show').addEventListener('click', () => {
const raw = byId('raw');
raw.hidden = !raw.hidden;
if (!raw.hidden) raw.textContent = JSON.stringify(JSON.parse(result()), null, 1);
});
return { result, say, hide, tell: text => { live.textContent = text; } };
})();
