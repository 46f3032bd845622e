// Length and lower bound over time. Searches gain most in the first moments, so time is on a logarithmic scale.

import { formatLength } from "./words.js";

const SPACE = { left: 52, right: 10, top: 8, bottom: 20 };

/** `series` is [{frames, bounds, color, end}], `now` the time that the map shows. */
export function drawChart(canvas, { series, optimum, now, colors }) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (width === 0) return;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "11px system-ui, sans-serif";
  const frames = series.flatMap((each) => each.frames);
  if (frames.length === 0) {
    context.fillStyle = colors.muted;
    context.textAlign = "center";
    context.fillText("length and lower bound over time", width / 2, height / 2);
    return;
  }
  const least = Math.max(1e-3, Math.min(...frames.map((each) => each.seconds)) * 0.8);
  const most = Math.max(least * 4, ...series.map((each) => each.end), ...frames.map((each) => each.seconds));
  const lengths = frames.map((each) => each.length);
  const bounds = series.flatMap((each) => each.bounds.slice(-1).map((bound) => bound.length));
  const known = optimum === null ? [] : [optimum];
  const highest = Math.max(...lengths);
  const low = Math.min(...lengths, ...bounds, ...known);
  const lowest = low - 0.06 * (highest - low || 0.02 * highest);
  const x = (seconds) =>
    SPACE.left +
    ((width - SPACE.left - SPACE.right) * Math.log(Math.max(seconds, least) / least)) / Math.log(most / least);
  const y = (length) =>
    SPACE.top + ((height - SPACE.top - SPACE.bottom) * (highest - length)) / (highest - lowest || 1);
  axes(context, { x, y, least, most, low, highest, width, height, colors });

  const steps = (points, end) => {
    context.beginPath();
    points.forEach((point, k) => {
      if (k === 0) context.moveTo(x(point.seconds), y(point.length));
      else {
        context.lineTo(x(point.seconds), y(points[k - 1].length));
        context.lineTo(x(point.seconds), y(point.length));
      }
    });
    if (points.length) context.lineTo(x(end), y(points.at(-1).length));
    context.stroke();
  };
  const across = (length, color, dash) => {
    context.strokeStyle = color;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(SPACE.left, y(length));
    context.lineTo(width - SPACE.right, y(length));
    context.stroke();
    context.setLineDash([]);
  };
  context.lineWidth = 1.5;
  if (optimum !== null) across(optimum, colors.city, [1, 4]);
  for (const each of series) {
    const bound = each.bounds.at(-1);
    if (bound) across(bound.length, colors.bound, [6, 4]);
  }
  context.lineWidth = 2;
  for (const each of series) {
    context.strokeStyle = each.color;
    steps(each.frames, each.end);
  }
  for (const each of series) {
    const shown = each.frames.findLast((frame) => frame.seconds <= now);
    if (!shown) continue;
    context.fillStyle = each.color;
    context.beginPath();
    context.arc(x(now), y(shown.length), 4.5, 0, 2 * Math.PI);
    context.fill();
  }
}

function axes(context, { x, y, least, most, low, highest, width, height, colors }) {
  context.strokeStyle = colors.frame;
  context.fillStyle = colors.muted;
  context.lineWidth = 1;
  context.textAlign = "center";
  for (let tick = 1e-3; tick <= most; tick *= 10) {
    if (tick < least) continue;
    context.beginPath();
    context.moveTo(x(tick), SPACE.top);
    context.lineTo(x(tick), height - SPACE.bottom);
    context.stroke();
    context.fillText(tick < 0.99 ? `${Math.round(tick * 1000)} ms` : `${Math.round(tick)} s`, x(tick), height - 6);
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const length of highest > low ? [highest, (low + highest) / 2, low] : [low]) {
    context.beginPath();
    context.moveTo(SPACE.left, y(length));
    context.lineTo(width - SPACE.right, y(length));
    context.stroke();
    context.fillText(formatLength(length), SPACE.left - 6, y(length));
  }
}
