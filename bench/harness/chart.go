package harness

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Point is one measurement. Both must be more than 0 on a logarithmic axis;
// points that are not are left out.
type Point struct{ X, Y float64 }

// Series is one line of a chart.
type Series struct {
	Name   string
	Points []Point
}

// Chart describes a chart.
type Chart struct {
	Title, X, Y string // the title, and what the axes show with their units
	LogX, LogY  bool
	Lines       []Series
}

// Add puts a point at the end of the line of that name, which it makes if need be.
func (c *Chart) Add(name string, x, y float64) {
	i := slices.IndexFunc(c.Lines, func(s Series) bool { return s.Name == name })
	if i < 0 {
		i = len(c.Lines)
		c.Lines = append(c.Lines, Series{Name: name})
	}
	c.Lines[i].Points = append(c.Lines[i].Points, Point{x, y})
}

const (
	width, height            = 760, 440
	left, right, top, bottom = 80, 170, 50, 60
)

var colors = []string{"#d1242f", "#0969da", "#1a7f37", "#bf8700", "#8250df", "#bc4c00", "#1b7c83", "#6e7781", "#cf4aa0"}

// SVG returns the picture. The same chart always gives the same bytes, so that
// a picture changes in a commit only when its figures do.
func (c *Chart) SVG() string {
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" `+
			`fill="#59636e">`+"\n",
		width, height)
	text(&b, left, 24, "start", c.Title, ` font-size="15"`)
	text(&b, (left+width-right)/2, height-16, "middle", c.X, "")
	text(&b, 16, (top+height-bottom)/2, "middle", c.Y,
		fmt.Sprintf(` transform="rotate(-90 16 %d)"`, (top+height-bottom)/2))
	x := c.axis(c.LogX, func(p Point) float64 { return p.X }, left, width-right)
	y := c.axis(c.LogY, func(p Point) float64 { return p.Y }, height-bottom, top)
	if x.empty || y.empty {
		text(&b, (left+width-right)/2, height/2, "middle", "nothing was measured", "")
		return b.String() + "</svg>\n"
	}
	for _, tick := range x.ticks() {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#8c959f" stroke-opacity="0.3"/>`+"\n",
			x.at(tick), top, x.at(tick), height-bottom)
		text(&b, int(x.at(tick)), height-bottom+18, "middle", short(tick), "")
	}
	for _, tick := range y.ticks() {
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#8c959f" stroke-opacity="0.3"/>`+"\n",
			left, y.at(tick), width-right, y.at(tick))
		text(&b, left-8, int(y.at(tick))+4, "end", short(tick), "")
	}
	for i := range c.Lines {
		c.draw(&b, i, x, y)
	}
	return b.String() + "</svg>\n"
}

// draw adds one line, its points and its entry in the legend.
func (c *Chart) draw(b *strings.Builder, i int, x, y axis) {
	line, color := &c.Lines[i], colors[i%len(colors)]
	points := slices.Clone(line.Points)
	slices.SortFunc(points, func(p, q Point) int { return int(math.Copysign(1, p.X-q.X)) })
	var path strings.Builder
	for _, p := range points {
		if !x.shows(p.X) || !y.shows(p.Y) {
			continue
		}
		fmt.Fprintf(&path, "%.1f,%.1f ", x.at(p.X), y.at(p.Y))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x.at(p.X), y.at(p.Y), color)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
		strings.TrimSpace(path.String()), color)
	at := top + 8 + 20*i
	fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="3"/>`+"\n",
		width-right+14, at, width-right+34, at, color)
	text(b, width-right+40, at+4, "start", line.Name, "")
}

func text(b *strings.Builder, x, y int, anchor, s, attributes string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s"%s>%s</text>`+"\n", x, y, anchor, attributes,
		html.EscapeString(s))
}

// axis maps values to places.
type axis struct {
	log      bool
	empty    bool
	low      float64 // value, or its logarithm
	high     float64
	from, to float64 // places of low and high
}

func (c *Chart) axis(log bool, value func(Point) float64, from, to float64) axis {
	a := axis{log: log, low: math.Inf(1), high: math.Inf(-1), from: from, to: to}
	for _, line := range c.Lines {
		for _, p := range line.Points {
			if v := value(p); a.shows(v) {
				a.low, a.high = min(a.low, a.scale(v)), max(a.high, a.scale(v))
			}
		}
	}
	a.empty = math.IsInf(a.low, 1)
	if log {
		a.low, a.high = math.Floor(a.low+1e-9), math.Ceil(a.high-1e-9)
	} else {
		a.low = min(a.low, 0)
	}
	if a.high <= a.low {
		a.high = a.low + 1
	}
	return a
}

func (a axis) shows(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) && (!a.log || v > 0) }

func (a axis) scale(v float64) float64 {
	if a.log {
		return math.Log10(v)
	}
	return v
}

func (a axis) at(v float64) float64 {
	return a.from + (a.scale(v)-a.low)/(a.high-a.low)*(a.to-a.from)
}

// ticks returns the values that get a line of the grid.
func (a axis) ticks() []float64 {
	var ticks []float64
	if a.log {
		for e := a.low; e <= a.high+1e-9; e++ {
			ticks = append(ticks, math.Pow(10, e))
		}
		return ticks
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/2)))
	for (a.high-a.low)/step > 6 {
		step *= 2
	}
	for v := math.Ceil(a.low/step) * step; v <= a.high+step*1e-9; v += step {
		ticks = append(ticks, v)
	}
	return ticks
}

// short writes a number for an axis.
func short(v float64) string {
	switch m := math.Abs(v); {
	case m >= 1e9:
		return fmt.Sprintf("%.4gG", v/1e9)
	case m >= 1e6:
		return fmt.Sprintf("%.4gM", v/1e6)
	case m >= 1e3:
		return fmt.Sprintf("%.4gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}
