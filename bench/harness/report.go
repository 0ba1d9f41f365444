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
	// Width is that in a plain table, less than 0 for text on the left.
	Width int
	// Format is for numbers, as for fmt; "," writes it whole, with commas.
	Format string
}

// Table is the columns of lines, for people.
type Table struct {
	Columns  []Column
	Markdown bool
}

// Head returns what is above the lines.
func (t *Table) Head() string {
	cells, rule := make([]string, len(t.Columns)), ""
	for i, c := range t.Columns {
		cells[i] = c.Head
		if rule += "---"; c.Format != "" || c.Width > 0 {
			rule += ":"
		}
		rule += "|"
	}
	if t.Markdown {
		return t.join(cells) + "|" + rule + "\n"
	}
	return t.join(cells)
}

// Line returns one line.
func (t *Table) Line(l Line) string {
	cells := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		var number float64
		switch v := l[c.Name].(type) {
		case nil:
			continue
		case float64:
			number = v
		case int64:
			number = float64(v)
		case int:
			number = float64(v)
		default:
			cells[i] = fmt.Sprint(v)
			continue
		}
		if cells[i] = Count(number); c.Format != "," {
			cells[i] = fmt.Sprintf(c.Format, number)
		}
	}
	return t.join(cells)
}

func (t *Table) join(cells []string) string {
	if t.Markdown {
		return "| " + strings.Join(cells, " | ") + " |\n"
	}
	var b strings.Builder
	for i, c := range t.Columns {
		fmt.Fprintf(&b, "%*s ", c.Width, cells[i])
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}

// Section returns a table in Markdown with a title, or nothing when it has no lines.
func Section(title string, columns []Column, lines []Line) string {
	if len(lines) == 0 {
		return ""
	}
	t := &Table{columns, true}
	text := "## " + title + "\n\n" + t.Head()
	for _, l := range lines {
		text += t.Line(l)
	}
	return text + "\n"
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
	return Report{"date": time.Now().UTC().Format(time.RFC3339), "commit": commit(), "machine": Machine()}
}

// Machine names the processor, the kernel and the version of Go.
func Machine() string {
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
