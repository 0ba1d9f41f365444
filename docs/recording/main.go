// Command recording renders the recording of a terminal as an animated SVG.
//
//	script -qec "seqledger demo" -O output -T timing
//	recording "seqledger demo" output timing >demo.svg
//
// output is what the terminal was sent, timing a line "SECONDS BYTES" for each piece of it. make
// recording runs it for the demo.
package main

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: recording COMMAND OUTPUT TIMING")
		os.Exit(2)
	}
	if err := record(os.Stdout, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func record(w io.Writer, command, outputFile, timingFile string) error {
	output, err := os.ReadFile(outputFile)
	if err != nil {
		return err
	}
	timing, err := os.ReadFile(timingFile)
	if err != nil {
		return err
	}
	all, err := frames("$ "+command, output, timing)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, render(all))
	return err
}

// frame is what the terminal shows from a moment on, in seconds from the start.
type frame struct {
	at    float64
	lines []string
}

// frames replays the output. The first line is shown throughout.
func frames(first string, output, timing []byte) ([]frame, error) {
	// script adds a first line to the file.
	if header, rest, found := bytes.Cut(output, []byte("\n")); found &&
		bytes.HasPrefix(header, []byte("Script started")) {
		output = rest
	}
	all := []frame{{0, []string{first}}}
	var screen screen
	at := 0.0
	for line := range strings.Lines(string(timing)) {
		var wait float64
		var size int
		if _, err := fmt.Sscanf(line, "%f %d\n", &wait, &size); err != nil {
			return nil, fmt.Errorf("timing %q: %w", line, err)
		}
		if size < 0 || size > len(output) {
			return nil, fmt.Errorf("timing %q: only %d bytes of the output are left", line, len(output))
		}
		at += wait
		if err := screen.write(string(output[:size])); err != nil {
			return nil, err
		}
		output = output[size:]
		next := frame{at, append([]string{first}, screen.lines...)}
		if last := all[len(all)-1]; !slices.Equal(last.lines, next.lines) {
			all = append(all, next)
		}
	}
	return all, nil
}

// screen is a terminal that knows what the demo uses: lines, and two escape sequences.
type screen struct {
	lines []string
	row   int // of the cursor; its column is 0 or past the end
}

// sequence matches the escape sequences up n lines and clear to the end, and a line's end.
var sequence = regexp.MustCompile(`\x1b\[(\d*)([A-Za-z])|\r?\n`)

// write shows text. Other escape sequences are an error, because the picture would be wrong.
func (s *screen) write(text string) error {
	for text != "" {
		place := sequence.FindStringSubmatchIndex(text)
		if place == nil {
			s.put(text)
			return nil
		}
		s.put(text[:place[0]])
		switch {
		case place[4] < 0:
			s.row++
		case text[place[4]] == 'A':
			n, _ := strconv.Atoi(text[place[2]:place[3]]) // digits, or nothing
			s.row = max(0, s.row-max(1, n))
		case text[place[4]] == 'J':
			s.lines = s.lines[:min(s.row, len(s.lines))]
		default:
			return fmt.Errorf("the output has the escape sequence %q", text[place[0]:place[1]])
		}
		text = text[place[1]:]
	}
	return nil
}

func (s *screen) put(text string) {
	if text == "" {
		return
	}
	for len(s.lines) <= s.row {
		s.lines = append(s.lines, "")
	}
	s.lines[s.row] += text
}

const (
	fontSize, lineHeight, charWidth = 14, 19, 8.43
	margin                          = 16
	// hold is how many seconds the last frame stays.
	hold = 10.0
)

// render draws the frames one above the other. Each is visible at its time; without animation,
// the last one is. The background makes it legible on light and on dark pages.
func render(all []frame) string {
	columns, rows := 0, 0
	for _, f := range all {
		rows = max(rows, len(f.lines))
		for _, line := range f.lines {
			columns = max(columns, len(line))
		}
	}
	width, height := 2*margin+int(float64(columns)*charWidth), 2*margin+rows*lineHeight
	total := all[len(all)-1].at + hold
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d"`+
		` role="img" xml:space="preserve"`+
		` font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"`+
		` font-size="%d" fill="#e6edf3">`+"\n", width, height, width, height, fontSize)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>text{white-space:pre}</style>\n", html.EscapeString(all[0].lines[0]))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#0d1117" stroke="#7d8590"/>`+"\n", width, height)
	for i, f := range all {
		until := total
		if i+1 < len(all) {
			until = all[i+1].at
		}
		visibility := "hidden"
		if i == len(all)-1 {
			visibility = "visible"
		}
		fmt.Fprintf(&b, `<g visibility="%s"><animate attributeName="visibility" calcMode="discrete"`+
			` repeatCount="indefinite" dur="%.2fs" values="hidden;visible;hidden" keyTimes="0;%.4f;%.4f"/>`+"\n",
			visibility, total, f.at/total, until/total)
		for row, line := range f.lines {
			if line != "" {
				fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n",
					margin, margin+fontSize+row*lineHeight, html.EscapeString(line))
			}
		}
		b.WriteString("</g>\n")
	}
	return b.String() + "</svg>\n"
}
