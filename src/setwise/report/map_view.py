"""What the map is in a browser: its elements, their looks, and the script that draws and moves it."""

HTML = """<div class="map">
<div class="stage">
<canvas tabindex="0" role="application" aria-label="Map of {count} images. Arrow keys move it, plus and minus zoom, 0
shows all, N goes from image to image."></canvas>
<div class="zoom"><button type="button" data-by="1.6" aria-label="Zoom in">+</button>
<button type="button" data-by="0.625" aria-label="Zoom out">&minus;</button>
<button type="button" data-by="0" aria-label="Show all">All</button></div>
<div class="tip" hidden><canvas></canvas><b></b><span></span></div>
</div>
<div class="side">
{choice}
<ul class="key"></ul>
<div class="picked" aria-live="polite"><p class="soft">Click or tap a point to see its image and those nearest to it.
Drag to move. Zoom with the buttons, two fingers, or the wheel after a click. Close up, points become pictures.</p>
</div>
</div>
</div>
<noscript><p>The map needs JavaScript, which this browser does not run. The lists below do not.</p></noscript>
<script type="application/json" id="map-data">{data}</script>"""

STYLE = """
.map{display:grid;grid-template-columns:minmax(0,1fr) 19rem;gap:1rem;margin:1.2rem 0}
.stage{position:relative;height:min(42rem,78vh);border:1px solid var(--line);border-radius:6px;overflow:hidden;
background:var(--panel)}
.stage>canvas{display:block;width:100%;height:100%;cursor:grab;touch-action:pan-y}
.stage>canvas.drag{cursor:grabbing}
.stage>canvas:focus-visible{outline-offset:-3px}
.zoom{position:absolute;right:.6rem;top:.6rem;display:flex;flex-direction:column;gap:.3rem}
.map button{font:inherit;color:inherit;background:var(--page);border:1px solid var(--line);border-radius:6px;
cursor:pointer}
.zoom button{min-width:2.4rem;height:2.4rem;padding:0 .3rem}
.map button:hover{border-color:var(--soft)}
.tip{position:absolute;pointer-events:none;max-width:13rem;padding:.4rem;border:1px solid var(--line);border-radius:6px;
background:var(--page);font-size:.8rem;line-height:1.3;box-shadow:0 2px 10px #0003}
.tip[hidden]{display:none}
.tip canvas{display:block;margin-bottom:.3rem;border-radius:4px}
.tip b,.tip span{display:block;overflow-wrap:anywhere}
.tip b,.picked b{font-weight:600}
.tip span,.picked span{color:var(--soft)}
.side{display:flex;flex-direction:column;gap:.7rem;min-width:0;max-height:min(42rem,78vh)}
.side p{margin:0}
.picked{flex:none;min-height:5rem;border-top:1px solid var(--line);padding-top:.7rem;font-size:.85rem;line-height:1.4}
.picked>canvas{display:block;border-radius:6px;margin-bottom:.4rem}
.picked b,.picked span{display:block;overflow-wrap:anywhere}
.near{display:grid;grid-template-columns:repeat(6,1fr);gap:.3rem;margin:.5rem 0 0}
.map .near button{padding:2px;font-size:.72rem;line-height:1.2;font-variant-numeric:tabular-nums;min-width:0}
.near canvas{display:block;width:100%;border-radius:4px;margin-bottom:2px}
fieldset{border:0;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.9rem}
fieldset legend{float:left;padding:0;margin-right:1rem;color:var(--soft)}
.key{list-style:none;margin:0;padding:0;overflow-y:auto;font-size:.85rem;min-height:6rem;flex:0 1 auto}
.map .key button{display:flex;gap:.5rem;align-items:center;width:100%;padding:.15rem .4rem;border-color:transparent;
background:none;text-align:left}
.map .key button:hover{background:var(--panel)}
.map .key [aria-pressed=true]{background:var(--panel);border-color:var(--line);font-weight:600}
.key :focus-visible{outline-offset:-2px}
.key i{flex:none;width:.8rem;height:.8rem;border-radius:50%}
.key span{flex:1;overflow-wrap:anywhere}
.key b{font-weight:400;color:var(--soft);font-variant-numeric:tabular-nums}
.gallery [data-row]{cursor:pointer}
@media (max-width:60rem){.map{grid-template-columns:minmax(0,1fr)}.stage{height:min(30rem,70vh)}.side{max-height:none}
.picked{min-height:0}.key{max-height:14rem;columns:2 11rem}}
@media print{.zoom{display:none}}
"""

# The map: points on a canvas, which become pictures when few are in sight. Rows are numbers of images.
SCRIPT = """
(() => {
const find = name => document.querySelector(".map " + name);
const data = JSON.parse(document.getElementById("map-data").textContent);
const numbers = (kind, text) => new kind(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
const X = numbers(Uint16Array, data.x), Y = numbers(Uint16Array, data.y), slots = numbers(Int32Array, data.slots);
const near = numbers(Uint32Array, data.near), cosine = numbers(Uint16Array, data.cosine), count = X.length;
const groups = data.groups.map(one => ({...one, of: numbers(Uint16Array, one.of)}));
const canvas = find(".stage > canvas"), pen = canvas.getContext("2d"), tip = find(".tip"), picked = find(".picked");
const dark = matchMedia("(prefers-color-scheme:dark)"), k = near.length / count, sheets = [];
let by = 0, only = -1, chosen = -1, under = -1, scale = 1, left = 0, top = 0, width = 0, height = 0, waiting = 0;

const colour = n => {
  const many = groups[by].names.length;
  if (many <= 5) return getComputedStyle(document.documentElement).getPropertyValue("--c" + n).trim();
  return `oklch(${(dark.matches ? [0.66, 0.82, 0.74] : [0.5, 0.68, 0.59])[n % 3]} 0.16 ${n / many * 360 + 20})`;
};
const side = () => Math.min(width, height) - 40;
const placeX = row => (width - side()) / 2 + X[row] / 65535 * side();
const placeY = row => (height - side()) / 2 + Y[row] / 65535 * side();
const screenX = row => placeX(row) * scale + left, screenY = row => placeY(row) * scale + top;

// Draw the thumbnail of a row, at most `size` large, around (x, y); its width and height, or null if there is none yet.
const thumbnail = (to, row, x, y, size) => {
  const slot = slots[row], [w, h] = data.cell, n = Math.floor(slot / data.per);
  if (slot < 0) return null;
  if (!sheets[n]) {
    sheets[n] = new Image();
    sheets[n].src = data.sheets[n];
  }
  const at = slot % data.per, much = size / Math.max(w, h), box = [w * much, h * much];
  const put = () => {
    to.imageSmoothingEnabled = Math.max(w, h) > 16;
    to.drawImage(sheets[n], at % data.columns * data.pitch[0], Math.floor(at / data.columns) * data.pitch[1], w, h,
      x - box[0] / 2, y - box[1] / 2, ...box);
  };
  if (sheets[n].complete && sheets[n].naturalWidth) put();
  else sheets[n].addEventListener("load", to === pen ? draw : put, {once: true});
  return box;
};

const paint = () => {
  waiting = 0;
  const sharp = devicePixelRatio || 1, of = groups[by].of, shown = [], rest = [];
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, width, height);
  for (let row = 0; row < count; row++) {
    const x = screenX(row), y = screenY(row);
    if (x < -30 || y < -30 || x > width + 30 || y > height + 30) continue;
    if (only >= 0 && of[row] !== only) rest.push(row);
    else (shown[of[row]] ||= []).push(row);
  }
  const many = shown.reduce((sum, rows) => sum + rows.length, 0);
  const size = Math.max(0.9, Math.min(6, 160 / (many + rest.length + 1) ** 0.5) * Math.min(1, side() / 600));
  const dots = rows => {
    pen.beginPath();
    for (const row of rows) {
      const x = screenX(row), y = screenY(row);
      if (size < 2) pen.rect(x - size, y - size, 2 * size, 2 * size);
      else { pen.moveTo(x + size, y); pen.arc(x, y, size, 0, 7); }
    }
    pen.fill();
  };
  pen.globalAlpha = 0.15;
  pen.fillStyle = getComputedStyle(canvas).color;
  dots(rest);
  pen.globalAlpha = 0.8;
  const pictures = many <= width * height / 3600 && data.sheets.length;
  shown.forEach((rows, n) => {
    pen.fillStyle = pen.strokeStyle = colour(n);
    dots(rows);
    if (!pictures) return;
    pen.globalAlpha = 1;
    pen.lineWidth = 2;
    for (const row of rows) {
      const box = thumbnail(pen, row, screenX(row), screenY(row), 44);
      if (box) pen.strokeRect(screenX(row) - box[0] / 2, screenY(row) - box[1] / 2, ...box);
    }
  });
  pen.globalAlpha = 1;
  for (const [row, wide] of [[under, 2], [chosen, 3]]) if (row >= 0) {
    const x = screenX(row), y = screenY(row), box = pictures && thumbnail(pen, row, x, y, 60);
    pen.strokeStyle = getComputedStyle(canvas).color;
    pen.lineWidth = wide;
    pen.beginPath();
    if (box) pen.rect(x - box[0] / 2, y - box[1] / 2, ...box);
    else pen.arc(x, y, size + 5, 0, 7);
    pen.stroke();
  }
};
const draw = () => { waiting ||= requestAnimationFrame(paint); };

const keep = () => {  // the map cannot be lost out of sight
  left = Math.min(width / 2, Math.max(left, width / 2 - width * scale));
  top = Math.min(height / 2, Math.max(top, height / 2 - height * scale));
  canvas.style.touchAction = scale > 1.01 ? "none" : "pan-y";
  draw();
};
const zoom = (much, x = width / 2, y = height / 2) => {
  const before = scale;
  scale = much ? Math.min(400, Math.max(1, scale * much)) : 1;
  left = much && scale > 1 ? x - (x - left) * scale / before : 0;
  top = much && scale > 1 ? y - (y - top) * scale / before : 0;
  keep();
};
const closest = (x, y, most) => {
  let best = -1, least = most * most;
  for (let row = 0; row < count; row++) {
    if (only >= 0 && groups[by].of[row] !== only) continue;
    const d = (screenX(row) - x) ** 2 + (screenY(row) - y) ** 2;
    if (d < least) { least = d; best = row; }
  }
  return best;
};

const element = (tag, text = "") => Object.assign(document.createElement(tag), {textContent: text});
const portrait = (target, row, size) => {
  const much = size / Math.max(...data.cell), sharp = devicePixelRatio || 1;
  const [w, h] = data.cell.map(pixels => pixels * much);
  [target.width, target.height] = [w * sharp, h * sharp];
  [target.style.width, target.style.height] = [w + "px", h + "px"];
  target.hidden = slots[row] < 0;
  thumbnail(target.getContext("2d"), row, w * sharp / 2, h * sharp / 2, size * sharp);
  return target;
};
const about = row => groups.map(one => one.names[one.of[row]]).join(" \\u00b7 ");
const pick = (row, centre) => {
  chosen = row;
  tip.hidden = true;
  if (row < 0) return draw();
  const list = element("div");
  list.className = "near";
  for (let n = 0; n < k; n++) {
    const other = near[row * k + n], button = element("button"), value = cosine[row * k + n] / 65535 * 2 - 1;
    button.type = "button";
    button.title = data.paths[other];
    button.setAttribute("aria-label", `${data.paths[other]}, cosine ${value.toFixed(2)}`);
    const small = portrait(document.createElement("canvas"), other, 56);
    small.style.width = small.style.height = "";
    button.append(small, value.toFixed(2));
    button.addEventListener("click", () => pick(other, true));
    list.append(button);
  }
  const words = k ? [element("span", "Nearest, with cosine:"), list] : [];
  picked.replaceChildren(portrait(document.createElement("canvas"), row, 132), element("b", data.paths[row]),
    element("span", about(row)), ...words);
  if (centre) {
    if (scale < 3) scale = 3;
    left = width / 2 - placeX(row) * scale;
    top = height / 2 - placeY(row) * scale;
  }
  keep();
};

const showTip = (x, y) => {
  const row = closest(x, y, 14);
  if (row !== under) { under = row; draw(); }
  tip.hidden = row < 0;
  if (row < 0) return;
  portrait(tip.querySelector("canvas"), row, 112);
  tip.querySelector("b").textContent = data.paths[row];
  tip.querySelector("span").textContent = about(row);
  tip.style.left = Math.max(4, x + 16 + tip.offsetWidth > width ? x - 16 - tip.offsetWidth : x + 16) + "px";
  tip.style.top = Math.max(4, Math.min(y + 12, height - tip.offsetHeight - 4)) + "px";
};
const fingers = new Map();
let moved = 0;
const at = event => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
canvas.addEventListener("pointerdown", event => {
  canvas.setPointerCapture(event.pointerId);
  if (!fingers.size) moved = 0;
  fingers.set(event.pointerId, at(event));
});
canvas.addEventListener("pointermove", event => {
  const [x, y] = at(event), before = fingers.get(event.pointerId);
  if (!before) return event.pointerType === "mouse" ? showTip(x, y) : undefined;
  const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
  moved += Math.hypot(x - before[0], y - before[1]);
  left += (x - before[0]) / fingers.size;
  top += (y - before[1]) / fingers.size;
  if (others.length) {
    const [u, v] = others[0];
    zoom(Math.hypot(x - u, y - v) / Math.max(1, Math.hypot(before[0] - u, before[1] - v)), (x + u) / 2, (y + v) / 2);
  }
  fingers.set(event.pointerId, [x, y]);
  if (moved > 6) { tip.hidden = true; canvas.classList.add("drag"); keep(); }
});
const release = event => {
  if (fingers.delete(event.pointerId) && event.type === "pointerup" && moved <= 6 && !fingers.size) {
    const row = closest(...at(event), event.pointerType === "mouse" ? 14 : 26);
    if (row >= 0) pick(row);
  }
  canvas.classList.remove("drag");
};
canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);
canvas.addEventListener("pointerleave", () => { tip.hidden = true; under = -1; draw(); });
canvas.addEventListener("wheel", event => {
  if (!event.ctrlKey && document.activeElement !== canvas) return;  // the page scrolls
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), ...at(event));
}, {passive: false});
canvas.addEventListener("keydown", event => {
  const step = {ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60]}[event.key];
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (step) { left += step[0]; top += step[1]; keep(); }
  else if (event.key === "+" || event.key === "=") zoom(1.6);
  else if (event.key === "-") zoom(0.625);
  else if (event.key === "0") zoom(0);
  else if (event.key === "n" || event.key === "N") pick((chosen + 1) % count, true);
  else return;
  event.preventDefault();
});
for (const button of document.querySelectorAll(".zoom button")) {
  button.addEventListener("click", () => zoom(Number(button.dataset.by)));
}

const legend = () => {
  const sums = new Array(groups[by].names.length).fill(0);
  for (const n of groups[by].of) sums[n]++;
  find(".key").replaceChildren(...groups[by].names.map((name, n) => {
    const item = element("li"), button = element("button"), dot = element("i");
    dot.style.background = colour(n);
    button.type = "button";
    button.setAttribute("aria-pressed", only === n);
    button.append(dot, element("span", name + groups[by].notes[n]), element("b", sums[n].toLocaleString("en")));
    button.addEventListener("click", () => {
      only = only === n ? -1 : n;
      legend();
      find(`.key li:nth-child(${n + 1}) button`).focus();
      draw();
    });
    item.append(button);
    return item;
  }));
};
for (const choice of document.querySelectorAll(".map input")) choice.addEventListener("change", () => {
  by = Number(choice.value);
  only = -1;
  legend();
  draw();
});
for (const item of document.querySelectorAll(".gallery [data-row]")) {
  item.tabIndex = 0;
  item.setAttribute("role", "button");
  const show = () => {
    pick(Number(item.dataset.row), true);
    document.querySelector(".map").scrollIntoView({block: "start"});
  };
  item.addEventListener("click", show);
  item.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(); }
  });
}
dark.addEventListener("change", () => { legend(); draw(); });
const fit = () => {
  const sharp = devicePixelRatio || 1;
  const middle = (at, size) => ((size / 2 - at) / scale - size / 2) / side();  // what stands in the middle stays there
  const back = (part, size) => scale > 1 ? size / 2 - (part * side() + size / 2) * scale : 0;
  const [u, v] = [middle(left, width), middle(top, height)];
  [width, height] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [width * sharp, height * sharp];
  [left, top] = [back(u, width), back(v, height)];
  keep();
  paint();  // now: another size has emptied the canvas
};
new ResizeObserver(fit).observe(canvas);
legend();
fit();
})();
"""
