package guard

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
)

// list requests a page of tools, and reports whether it did.
func (g *Guard) list(m *message) bool {
	if !g.enter() {
		return false // the list passes without hints
	}
	r := &request{clientID: m.id, cancelled: new(atomic.Bool), answer: make(chan *message, 1)}
	id := g.await(r)
	own, err := setMembers(m.raw, edit{"id", quote(id)})
	if err != nil {
		g.take(quote(id))
		g.leave()
		return false // impossible: the message was read
	}
	// Ends with the answer or the server; Run waits for it.
	go func() {
		defer g.leave()
		sent := *m
		sent.raw, sent.id = own, quote(id)
		if err := g.Upstream.Call(&sent); err != nil {
			g.take(quote(id))
			g.answer(rpcError(m.id, codeInternal, "seqledger: the server did not take the message: "+err.Error()))
			return
		}
		select {
		case a := <-r.answer:
			if !r.cancelled.Load() {
				g.answer(g.withHints(m, a))
			}
		case <-g.ended:
		}
	}()
	return true
}

// withHints returns the answer to a list of tools for the client.
func (g *Guard) withHints(m, a *message) []byte {
	line, err := setMembers(a.raw, edit{"id", m.id})
	if err != nil || a.result == nil {
		return line
	}
	var tools []byte
	var more bool
	err = members(a.result, func(name string, value jsontext.Value) error {
		switch name {
		case "nextCursor":
			more = true
		case "tools":
			return elements(value, func(tool jsontext.Value) error {
				if tools != nil {
					tools = append(tools, ',')
				}
				hinted, err := g.withHint(tool)
				tools = append(tools, hinted...)
				return err
			})
		}
		return nil
	})
	if err != nil {
		return line // the client will report the mistake
	}
	if !more {
		g.warnOfAbsent()
	}
	tools = slices.Concat([]byte{'['}, tools, []byte{']'})
	if result, err := setMembers(a.result, edit{"tools", tools}); err == nil {
		if hinted, err := setMembers(a.raw, edit{"id", m.id}, edit{"result", result}); err == nil {
			return hinted
		}
	}
	return line
}

// withHint returns a tool with idempotentHint set and without support for tasks, if it is guarded.
func (g *Guard) withHint(tool jsontext.Value) (jsontext.Value, error) {
	var name string
	var schema, execution jsontext.Value
	annotations := jsontext.Value("{}")
	err := members(tool, func(member string, value jsontext.Value) error {
		switch {
		case member == "name" && value.Kind() == '"':
			name = stringOf(value)
		case member == "annotations" && value.Kind() == '{':
			annotations = value
		case member == "inputSchema":
			schema = value
		case member == "execution" && value.Kind() == '{':
			execution = value
		}
		return nil
	})
	t := g.Config.Tools[name]
	if err != nil || t == nil {
		return tool, err
	}
	g.checkArguments(name, t, schema)
	if strings.Contains(string(execution), `"required"`) {
		g.Logger.Warn("the configuration names a tool that the server only runs as a task: the guard refuses its calls",
			"tool", name)
	}
	annotations, err = setMembers(annotations, edit{"idempotentHint", jsontext.Value("true")})
	if err != nil {
		return nil, err
	}
	edits := []edit{{"annotations", annotations}}
	if execution != nil { // a guarded tool is no task; without the member it is none either
		if execution, err = setMembers(execution, edit{"taskSupport", quote("forbidden")}); err != nil {
			return nil, err
		}
		edits = append(edits, edit{"execution", execution})
	}
	return setMembers(tool, edits...)
}

// checkArguments warns, the first time that a tool is listed, of configured arguments that the tool does not have. With
// a misspelled name, calls that differ only in the intended argument would count as retries.
func (g *Guard) checkArguments(name string, t *Tool, schema jsontext.Value) {
	g.mu.Lock()
	known := g.listed[name]
	g.listed[name] = true
	g.mu.Unlock()
	properties := map[string]bool{}
	err := members(schema, func(member string, value jsontext.Value) error {
		if member != "properties" {
			return nil
		}
		return members(value, func(property string, _ jsontext.Value) error {
			properties[property] = true
			return nil
		})
	})
	if known || err != nil || len(properties) == 0 {
		return
	}
	for _, pointer := range t.Arguments {
		for first := range jsontext.Pointer(pointer).Tokens() {
			if !properties[first] {
				g.Logger.Warn("the configuration names an argument that the tool does not have", "tool", name,
					"argument", first)
			}
			break
		}
	}
}

// warnOfAbsent warns of configured tools that the server does not have: a tool whose name is misspelled is not guarded.
func (g *Guard) warnOfAbsent() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(g.Config.Tools)) {
		if !g.listed[name] {
			g.listed[name] = true
			g.Logger.Warn("the configuration names a tool that the server does not list", "tool", name)
		}
	}
}
