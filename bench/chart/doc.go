// Package chart draws lines into an SVG file: what the benchmarks need and
// nothing else. It reads well on light and on dark pages.
package chart
