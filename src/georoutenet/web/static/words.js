// Numbers as they are read on the page.

/** Four significant digits at least. */
export function formatLength(length, unit = "") {
	const digits = Math.max(0, Math.min(6, 4 - Math.ceil(Math.log10(Math.max(length, 1e-12)))));
	const text = length.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
	return unit ? `${text} ${unit}` : text;
}

export const formatPercent = (value) => `${value.toFixed(Math.abs(value) < 0.995 ? 3 : 2)} %`;
export const formatSeconds = (seconds) => (seconds < 0.9995 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(2)} s`);
export const formatCount = (count) => count.toLocaleString("en");
