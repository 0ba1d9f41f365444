package datadir

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"
)

const exampleMarker = `{"format":2,"directory":"00112233445566778899aabbccddeeff",` +
	`"node":"00112233445566778899aabbccddeeff"}` + "\n"

// A marker has one form, and no checksum: so every other form is damage.
func TestMarkerHasOneForm(t *testing.T) {
	t.Parallel()
	d := &Directory{path: t.TempDir()}
	read := func(content string) error {
		if err := os.WriteFile(d.file(markerName), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return d.readMarker()
	}
	if err := read(exampleMarker); err != nil || hex.EncodeToString(d.identity) != "00112233445566778899aabbccddeeff" {
		t.Errorf("the example is read as %x, %v", d.identity, err)
	}
	old := strings.Replace(exampleMarker, `"format":2`, `"format":1`, 1)
	if err := read(old); err != nil || !d.HasOldLog() {
		t.Errorf("a directory with an old log: %v", err)
	}
	if err := d.LogConverted(); err != nil || d.HasOldLog() {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(d.file(markerName)); string(content) != exampleMarker || err != nil {
		t.Errorf("a directory whose log was converted has the marker %q, %v", content, err)
	}
	for _, content := range []string{
		strings.Replace(exampleMarker, `"format":2`, `"format":3`, 1), "", "null", "{}", exampleMarker[:len(exampleMarker)-1], exampleMarker + "\n", " " + exampleMarker,
		`{"format":2,"directory":"00112233445566778899AABBCCDDEEFF","node":"00112233445566778899AABBCCDDEEFF"}` + "\n",
		`{"format":2,"directory":"00112233445566778899aabbccddeeff","node":"00112233445566778899aabbccddeefe"}` + "\n",
		`{"format":2,"directory":"00112233445566778899aabbccddeeff"}` + "\n",
		exampleMarker[:len(exampleMarker)-2] + `,"more":1}` + "\n",
		`{"format":2,"directory":"0011","node":"0011"}` + "\n",
	} {
		if err := read(content); err == nil {
			t.Errorf("%q was taken for a marker", content)
		}
	}
}

// FuzzMarker: whatever is taken for a marker is what a new directory gets.
func FuzzMarker(f *testing.F) {
	f.Add([]byte(exampleMarker))
	f.Add([]byte(strings.Replace(exampleMarker, "2", "1", 1)))
	f.Add([]byte(`{"format":2,"Format":2,"directory":"\u0030"}`))
	d := &Directory{path: f.TempDir()}
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(d.file(markerName), content, 0o600); err != nil {
			t.Fatal(err)
		}
		d.identity = nil
		if d.readMarker() != nil {
			return
		}
		name := hex.EncodeToString(d.identity)
		format := strconv.Itoa(d.format)
		if want := `{"format":` + format + `,"directory":"` + name + `","node":"` + name + `"}` + "\n"; len(name) != 32 ||
			string(content) != want {
			t.Errorf("%q was taken for a marker", content)
		}
	})
}
