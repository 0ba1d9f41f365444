package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// appendTo acts as another program that keeps writing to a file.
func appendTo(t *testing.T, path, content string) {
	t.Helper()
	f := must.Get(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0))(t)
	defer f.Close()
	must.Get(f.WriteString(content))(t)
}

// TestImportGrowingFile imports a log that is written to all the while. The
// import is what was there when it began, and the rest must not stop it.
func TestImportGrowingFile(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := writeFile(t, "app.log", "first\nsec")
	args := importArgs(input, "--append-lines")
	r := s.do(t, args...).expect(t, exitDone, "all 2 lines")
	if r.stderr != "" {
		t.Errorf("want nothing said about a file that has not grown, got %v", r)
	}
	appendTo(t, input, "ond\nthird\n")
	grown := []string{"has grown by 10 bytes", "only its first 9 bytes",
		"tail -c +10 " + input, "line 2 was imported without its end"}
	s.do(t, args...).expect(t, exitDone, append(grown, "already imported: all 2 lines")...)
	last := s.do(t, "state", "--scope", "acme/main", "--client-id", "loader", "--json").expect(t, exitDone)
	if got := last.field(t, "lastCommittedSequence"); got != "2" {
		t.Errorf("want the two lines once, got sequence %v", got)
	}
	must.Do(t, os.Truncate(input, 4))
	r = s.do(t, args...).expect(t, exitRefused, "input has changed", "a second time")
	if strings.Contains(r.stderr, "--journal") {
		t.Errorf("another journal would write every line again, and must not be proposed: %v", r)
	}
}

// TestImportGrowsBetweenPasses: what the first pass has not seen is not sent.
func TestImportGrowsBetweenPasses(t *testing.T) {
	t.Parallel()
	s := serve(t)
	begun := "first\nsec" // a line is being written
	c, e, j, input := importing(t, s, "loader", begun)
	place, err := c.resume(e, s.client(t), j, importPlace{}, input, strings.NewReader(begun+"ond\nthird\n"))
	if err != nil || place.committed != 2 || place.sent != 2 {
		t.Errorf("want 2 lines and the import done, got %+v, %v", place, err)
	}
}

// TestImportResumesSlowly: passing over the committed lines may take longer
// than --timeout, which is about the server. Otherwise a large import could
// never be resumed.
func TestImportResumesSlowly(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c, e, j, input := importing(t, s, "loader", "first\nsecond\n")
	broken := io.MultiReader(strings.NewReader("first\n"), iotest.ErrReader(errors.New("broken")))
	place, err := c.resume(e, s.client(t), j, importPlace{}, input, broken)
	if err == nil || place.sent != 1 {
		t.Fatalf("want the first line, got %+v, %v", place, err)
	}
	c.Timeout = 2 * time.Second
	slow := &hookReader{strings.NewReader("first\nsecond\n"), func() { <-time.After(2*c.Timeout + c.Timeout/4) }}
	if place, err = c.resume(e, s.client(t), j, place, input, slow); err != nil || place.committed != 2 {
		t.Errorf("want the second line, got %+v, %v", place, err)
	}
}

// hookReader calls a function before the first byte.
type hookReader struct {
	content *strings.Reader
	hook    func()
}

func (r *hookReader) Read(p []byte) (int, error) {
	if r.hook != nil {
		r.hook()
		r.hook = nil
	}
	return r.content.Read(p)
}

// TestImportStallsAtOnce: a server that goes away before the first line must
// end the import too, although there was no progress to wait for another of.
func TestImportStallsAtOnce(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c, e, j, input := importing(t, s, "loader", "line\n")
	c.Timeout = 2 * time.Second
	_, err := c.resume(e, s.client(t), j, importPlace{}, input, &hookReader{strings.NewReader("line\n"), s.kill})
	check.Is(t, err, errStalled, "want no progress within --timeout")
}
