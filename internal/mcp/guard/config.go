package guard

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/yamlfile"
)

// The defaults of a configuration.
const (
	DefaultWindow    = 10 * time.Minute
	DefaultKeyWindow = 24 * time.Hour
)

// maxConfig bounds the size of a configuration, in bytes.
const maxConfig = 1 << 20

// Errors says what happens to the key after an error answer of the server.
type Errors string

// The values of Errors.
const (
	StoreErrors   Errors = "store"   // the error is the result: retries get it, too
	ReleaseErrors Errors = "release" // nothing was done: a retry runs the tool again
	UnknownErrors Errors = "unknown" // the outcome is unknown: retries are refused
)

// Tool configures how a tool is guarded.
type Tool struct {
	// Arguments are JSON pointers to the arguments that identify a call without a key. Nil means all arguments.
	Arguments []string
	// Window is how long an equal call without a key counts as a retry, measured from the end of the first one.
	// KeyWindow is that for calls with a key.
	Window, KeyWindow time.Duration
	// ForgetAfter is how long the key of a call that has one stays taken; see [idempotency.Settings.ForgetAfter].
	ForgetAfter time.Duration
	// KeyRequired refuses calls without a key.
	KeyRequired bool
	// Errors applies to answers that are errors: a result with isError, or a JSON-RPC error.
	Errors Errors
	// Timeout is after what time the client is told that the call is still running; 0 means never. The call continues.
	Timeout time.Duration
	// IfUnknown tells the agent how to find out whether a call took effect.
	IfUnknown string
}

// Config is a guard's configuration file.
type Config struct {
	// Server is the name of the MCP server in the records: their namespace is Server/TOOL.
	Server string
	// Wait is how long a retry waits for the first call, at most 60 s; a negative value disables waiting.
	Wait time.Duration
	// Lease is how long the store waits for a guard that was killed.
	Lease time.Duration
	// Tools are the guarded tools by name.
	Tools map[string]*Tool
}

// namespace returns the namespace of a tool's records.
func (c *Config) namespace(tool string) string { return c.Server + "/" + tool }

// Times are the defaults for a configuration file. Zero values mean idempotency.DefaultLease, idempotency.DefaultWait
// and DefaultKeyWindow; a negative Wait disables waiting. MaxTTL is the longest time for which the store keeps what has
// ended; 0 for as long as it is asked to.
type Times struct{ Lease, Wait, KeyWindow, MaxTTL time.Duration }

// ReadConfig reads a configuration file. The error lists every mistake, each prefixed with file:line.
func ReadConfig(path string, unset Times) (*Config, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // read only
	// One byte more than allowed, so that a longer file is refused and not cut off.
	content, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	if err == nil && len(content) > maxConfig {
		err = fmt.Errorf("%s: has more than 1 MiB", path)
	}
	if err != nil {
		return nil, err
	}
	return parseConfig(path, content, unset)
}

// parseConfig parses a configuration. path is used in messages.
func parseConfig(path string, content []byte, unset Times) (*Config, error) {
	root, err := yamlfile.Parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r := yamlfile.NewReader(path)
	if alias := yamlfile.FindAlias(root); alias != nil {
		r.Fail(alias, "", "anchors and aliases are not taken here")
		return nil, r.Err()
	}
	c := readConfig(r, root, unset)
	return c, r.Err()
}

// readConfig reads the whole file.
func readConfig(r *yamlfile.Reader, root *yaml.Node, times Times) *Config {
	o := r.Object(root, "", "server", "wait", "lease", "window", "key-window", "tools")
	c := &Config{
		Server: o.Text("server"), Tools: map[string]*Tool{},
		Lease: duration(o, "lease", cmp.Or(times.Lease, idempotency.DefaultLease),
			idempotency.MinLease, idempotency.MaxLease),
		Wait: duration(o, "wait", cmp.Or(times.Wait, idempotency.DefaultWait), 0, idempotency.MaxWait),
	}
	if c.Wait == 0 {
		c.Wait = -1
	}
	most := cmp.Or(times.MaxTTL, idempotency.MaxTTL)
	unset := Tool{
		Errors: StoreErrors,
		Window: duration(o, "window", DefaultWindow, idempotency.MinTTL, most),
		KeyWindow: duration(o, "key-window", cmp.Or(times.KeyWindow, DefaultKeyWindow),
			idempotency.MinTTL, most),
	}
	tools := o.Node("tools")
	if tools == nil || tools.Kind != yaml.MappingNode || len(tools.Content) == 0 {
		o.Fail("tools", "must name at least one tool to run once, such as tools: {charge: {}}")
		return c
	}
	var names []string // may be anything
	for pair := range slices.Chunk(tools.Content, 2) {
		names = append(names, pair[0].Value)
	}
	all := r.Object(tools, "tools", names...)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		n := all.Node(name)
		c.Tools[name] = readTool(r, n, all.At(name), unset, times.MaxTTL)
		key := idempotency.RecordKey{Namespace: c.namespace(name), Key: "k"}
		if err := key.Validate(); err != nil || name == "" {
			r.Fail(n, all.At(name), "makes the namespace %q, which must be at most %d characters of printable ASCII",
				c.namespace(name), idempotency.MaxNamespace)
		}
	}
	return c
}

// duration returns a duration between two bounds, or unset if it is absent.
func duration(o *yamlfile.Object, name string, unset, least, most time.Duration) time.Duration {
	if !o.Has(name) {
		return unset
	}
	d, err := time.ParseDuration(o.Text(name))
	if err != nil || d < least || d > most {
		o.Fail(name, "must be a duration such as 90s, 10m or 24h, from %v to %v", least, most)
		return unset
	}
	return d
}

// forgetAfter returns how long the key of a call stays taken, or never. A store may have a bound.
func forgetAfter(o *yamlfile.Object, window, maxTTL time.Duration) time.Duration {
	text := o.Text("forget-after")
	if maxTTL != 0 {
		return duration(o, "forget-after", 0, window, maxTTL)
	}
	if text == "never" {
		return idempotency.Never
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < window || d > idempotency.MaxForgetAfter {
		o.Fail("forget-after", "must be never, or a duration such as 8760h of at least key-window, %v", window)
	}
	return d
}

// oneOf returns a text that must be one of the choices; the first one is the default.
func oneOf(o *yamlfile.Object, name string, choices ...string) string {
	text := o.Optional(name, choices[0])
	if !slices.Contains(choices, text) {
		o.Fail(name, "must be one of %s", strings.Join(choices, ", "))
	}
	return text
}

// readTool reads the settings of a tool. An empty value means the defaults.
func readTool(r *yamlfile.Reader, n *yaml.Node, at string, unset Tool, maxTTL time.Duration) *Tool {
	t, most := unset, cmp.Or(maxTTL, idempotency.MaxTTL)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return &t
	}
	o := r.Object(n, at, "arguments", "window", "key-window", "forget-after", "key", "errors", "timeout", "if-unknown")
	t.Window = duration(o, "window", unset.Window, idempotency.MinTTL, most)
	t.KeyWindow = duration(o, "key-window", unset.KeyWindow, idempotency.MinTTL, most)
	if o.Has("forget-after") {
		t.ForgetAfter = forgetAfter(o, t.KeyWindow, maxTTL)
	}
	t.KeyRequired = oneOf(o, "key", "optional", "required") == "required"
	t.Errors = Errors(oneOf(o, "errors", string(StoreErrors), string(ReleaseErrors), string(UnknownErrors)))
	t.Timeout = duration(o, "timeout", 0, time.Second, 24*time.Hour)
	t.IfUnknown = o.Optional("if-unknown", "")
	t.Arguments = pointers(o)
	return &t
}

// maxArguments bounds the number of arguments that identify a call of a tool.
const maxArguments = 100

// pointers reads the arguments that identify a call: names, or JSON pointers, which begin with a slash.
func pointers(o *yamlfile.Object) []string {
	if !o.Has("arguments") {
		return nil
	}
	var all []string
	for _, text := range o.Texts("arguments", maxArguments) {
		pointer := text
		if !strings.HasPrefix(text, "/") {
			pointer = string(jsontext.Pointer("").AppendToken(text))
		}
		switch {
		case text == "": // already reported
		case !jsontext.Pointer(pointer).IsValid():
			o.Fail("arguments", "%q is neither the name of an argument nor a JSON pointer such as /order/id", text)
		case slices.Contains(all, pointer):
			o.Fail("arguments", "%q is there twice", text)
		}
		all = append(all, pointer)
	}
	if len(all) == 0 {
		o.Fail("arguments", "must be a list of arguments such as [order, amount]; leave it out for all of them")
	}
	return all
}
