// Length and lower bound over time. Searches gain most in the first moments, so time is on a logarithmic scale.

import { trace } from "./paint.js";
import { formatLength, formatSeconds } from "./words.js";

const SPACE = { left: 52, right: 10, top: 8, bottom: 20 };

/** `series` is [{frames, bound, color, end}], `now` the time that the map shows. */
export function drawChart(canvas, { series, optimum, now, colors }) {
	const ratio = window.devicePixelRatio || 1;
	const { clientWidth: width, clientHeight: height } = canvas;
	Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
	const context = canvas.getContext("2d");
	context.scale(ratio, ratio);
	context.font = "11px system-ui, sans-serif";
	context.textAlign = "center";
	context.fillStyle = colors.muted;
	if (series.length === 0) {
		context.fillText("length and lower bound over time", width / 2, height / 2);
		return;
	}
	const frames = series.flatMap((each) => each.frames);
	const lengths = frames.map((frame) => frame.length);
	const bounds = series.flatMap((each) => each.bound ?? []);
	const least = Math.max(1e-3, Math.min(...frames.map((frame) => frame.seconds)) * 0.8);
	const most = Math.max(least * 4, ...series.map((each) => each.end));
	const highest = Math.max(...lengths);
	const lowest = Math.min(...lengths, ...bounds, optimum ?? Infinity);
	const floor = lowest - 0.06 * (highest - lowest || 0.02 * highest);
	const [right, bottom] = [width - SPACE.right, height - SPACE.bottom];
	const x = (seconds) => SPACE.left + ((right - SPACE.left) * Math.log(Math.max(seconds, least) / least)) / Math.log(most / least);
	const y = (length) => SPACE.top + ((bottom - SPACE.top) * (highest - length)) / (highest - floor);
	const across = (length) => trace(context, [[SPACE.left, y(length)], [right, y(length)]]);

	context.strokeStyle = colors.frame;
	const marks = most / least > 100 ? [1] : [1, 2, 5];
	for (const tick of [0.001, 0.01, 0.1, 1, 10].flatMap((unit) => marks.map((mark) => mark * unit))) {
		if (tick < least || tick > most) continue;
		trace(context, [[x(tick), SPACE.top], [x(tick), bottom]]);
		context.fillText(tick < 1 ? formatSeconds(tick) : `${tick} s`, x(tick), height - 6);
	}
	context.textAlign = "right";
	context.textBaseline = "middle";
	for (const length of new Set([highest, (lowest + highest) / 2, lowest])) {
		across(length);
		context.fillText(formatLength(length), SPACE.left - 6, y(length));
	}
	context.lineWidth = 1.5;
	context.strokeStyle = colors.city;
	context.setLineDash([1, 4]);
	if (optimum !== null) across(optimum);
	context.strokeStyle = colors.bound;
	context.setLineDash([6, 4]);
	bounds.forEach(across);
	context.setLineDash([]);
	context.lineWidth = 2;
	for (const { frames: steps, color, end } of series) {
		const corner = ({ length }, k) => [steps[k].seconds, steps[k + 1]?.seconds ?? end].map((seconds) => [x(seconds), y(length)]);
		context.strokeStyle = context.fillStyle = color;
		trace(context, steps.flatMap(corner));
		const shown = steps.findLast((frame) => frame.seconds <= now);
		if (!shown) continue;
		context.beginPath();
		context.arc(x(now), y(shown.length), 4.5, 0, 2 * Math.PI);
		context.fill();
	}
}
