package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// Line is a line of a table: texts and numbers by their names in a report.
type Line map[string]any

// With returns the line with values added.
func (l Line) With(v Values) Line {
	for name, value := range v {
		l[name] = value
	}
	return l
}

// Column is one of a table.
type Column struct {
	Head, Name string
	// Width is the least, less than 0 for text on the left.
	Width int
	// Format is for numbers, as for fmt; "," writes it whole, with commas.
	Format string
}

// Columns are those of a table, which is Markdown, and padded, so that people can read it as it is.
type Columns []Column

// Head returns what is above the lines.
func (c Columns) Head() string {
	cells, rule := make([]string, len(c)), "|"
	for i, column := range c {
		cells[i] = column.Head
		if rule += "---"; column.Format != "" || column.Width > 0 {
			rule += ":"
		}
		rule += "|"
	}
	return c.join(cells) + rule + "\n"
}

// Line returns one line.
func (c Columns) Line(l Line) string {
	cells := make([]string, len(c))
	for i, column := range c {
		number, is := l[column.Name].(float64)
		switch {
		case is && column.Format == ",":
			cells[i] = Count(number)
		case is:
			cells[i] = fmt.Sprintf(column.Format, number)
		case l[column.Name] != nil:
			cells[i] = fmt.Sprint(l[column.Name])
		}
	}
	return c.join(cells)
}

func (c Columns) join(cells []string) string {
	for i := range c {
		cells[i] = fmt.Sprintf("%*s", c[i].Width, cells[i])
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// Table returns a whole table.
func (c Columns) Table(lines []Line) string {
	text := c.Head()
	for _, l := range lines {
		text += c.Line(l)
	}
	return text
}

// Count writes a number whole, with commas.
func Count(f float64) string {
	s := fmt.Sprintf("%.0f", f)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Report is a run as it is kept.
type Report map[string]any

// NewReport returns a report that says where it comes from.
func NewReport() Report {
	return Report{"date": time.Now().UTC().Format(time.RFC3339), "commit": commit(), "machine": machine()}
}

// machine names the processor, the kernel and the version of Go.
func machine() string {
	name := runtime.GOARCH
	b, _ := os.ReadFile("/proc/cpuinfo") // a machine without has no name for it
	if _, rest, ok := strings.Cut(string(b), "model name\t: "); ok {
		name, _, _ = strings.Cut(rest, "\n")
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // the same
	return fmt.Sprintf("%d cores of %s, Linux %s, %s", runtime.NumCPU(), name, strings.TrimSpace(string(kernel)),
		runtime.Version())
}

// commit returns the checked-out commit, with -dirty if files differ from it.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// WriteJSON writes something for programs.
func WriteJSON(file string, content any) error {
	b, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
