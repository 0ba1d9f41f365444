package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestScreen: what a terminal shows after the sequences that the demo uses, however they arrive in pieces.
func TestScreen(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                              nil,
		"a":                             {"a"},
		"a\nb\r\n":                      {"a", "b"},
		"\n\nc":                         {"", "", "c"},
		"a\nb\n\x1b[Jc":                 {"a", "b", "c"},
		"a\nb\n\x1b[1A\x1b[Jc":          {"a", "c"},
		"a\nb\n\x1b[A\x1b[Jc":           {"a", "c"},
		"a\nb\n\x1b[2A\x1b[J":           {},
		"a\nb\n\x1b[99A\x1b[Jc":         {"c"},
		"a\nb\nc\n\x1b[3A\x1b[Jd\ne\n":  {"d", "e"},
		"a\n\n\x1b[2A\x1b[J\x1b[Jb\x1b": {"b\x1b"},
	} {
		var s screen
		for line := range strings.Lines(text) { // a piece may end anywhere but within a sequence
			must.Do(t, s.write(line), "%q", text)
		}
		check.EqualSlices(t, s.lines, want, "%q shows %q", text)
	}
	for _, text := range []string{"\x1b[2K", "a\x1b[1B", "\x1b[31mred"} {
		check.ErrorContains(t, new(screen).write(text), "escape sequence", "%q would be drawn wrong", text)
	}
}

// keyTimes matches the part of the whole time in which a frame is seen, and the whole time.
var keyTimes = regexp.MustCompile(`dur="([0-9.]+)s" values="hidden;visible;hidden" keyTimes="0;([0-9.]+);([0-9.]+)"`)

// TestTimesOfFrames: at any time one frame is seen, and the last one stays for the hold.
func TestTimesOfFrames(t *testing.T) {
	t.Parallel()
	picture := render([]frame{{0, []string{"a"}}, {2.5, []string{"a", "<b> & c"}}, {10, []string{"d"}}})
	end := "0.0000"
	found := keyTimes.FindAllStringSubmatch(picture, -1)
	if len(found) != 3 {
		t.Fatalf("%d frames are drawn: %s", len(found), picture)
	}
	for i, m := range found {
		if m[1] != "20.00" || m[2] != end {
			t.Errorf("frame %d begins at %s of %s s, and the one before ends at %s", i, m[2], m[1], end)
		}
		end = m[3]
	}
	if from, err := strconv.ParseFloat(found[2][2], 64); err != nil || from != 0.5 || end != "1.0000" {
		t.Errorf("the last frame is seen from %v to %s, %v", from, end, err)
	}
	if !strings.Contains(picture, ">&lt;b&gt; &amp; c</text>") || strings.Contains(picture, "<b>") {
		t.Errorf("the terminal's text is markup: %s", picture)
	}
}

// TestRecord reads the two files of script, and says which one is wrong.
func TestRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	output, timing, none := filepath.Join(dir, "output"), filepath.Join(dir, "timing"), filepath.Join(dir, "none")
	for path, text := range map[string]string{output: "hello\n", timing: "1 6\n"} {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	var picture bytes.Buffer
	if err := record(&picture, "demo", output, timing); err != nil || !strings.Contains(picture.String(), ">hello<") ||
		!strings.Contains(picture.String(), "<title>$ demo</title>") {
		t.Errorf("%v, %s", err, picture.String())
	}
	for _, files := range [][2]string{{none, timing}, {output, none}} {
		picture.Reset()
		if err := record(&picture, "demo", files[0], files[1]); err == nil || !strings.Contains(err.Error(), none) ||
			picture.Len() > 0 {
			t.Errorf("%v: %v, %d bytes were written", files, err, picture.Len())
		}
	}
	for line, says := range map[string]string{"1 7\n": "only 6 bytes", "1 -1\n": "6 bytes", "later\n": `"later\n"`} {
		check.ErrorContains(t, check.Err(frames("$", []byte("hello\n"), []byte(line))), says, "timing %q", line)
	}
}

// TestNothingNewIsNoFrame: pieces after which the screen is the same cost nothing in the picture.
func TestNothingNewIsNoFrame(t *testing.T) {
	t.Parallel()
	var timing strings.Builder
	output := strings.Repeat("a\n\x1b[1A\x1b[J", 50) + "b"
	for range 50 {
		fmt.Fprintf(&timing, "0.1 %d\n", len("a\n\x1b[1A\x1b[J"))
	}
	timing.WriteString("0.1 1\n")
	all, err := frames("$", []byte(output), []byte(timing.String()))
	if err != nil || len(all) != 2 || !slices.Equal(all[1].lines, []string{"$", "b"}) || all[1].at < 5 {
		t.Errorf("%d frames, %v", len(all), err)
	}
}
