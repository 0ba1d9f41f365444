package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

type formInput struct {
	Name  string `json:"name,omitempty"`
	Form  string `json:"form,omitempty"`
	Value string `json:"value,omitempty"`
}

// addFormTools adds the tools of a service with forms: an agent creates a form, sets its value, validates it and
// submits it. A form is a file with its value. Creations and submissions are effects.
func addFormTools(s *mcp.Server, dir string) {
	add := func(tool string, do func(in formInput) (string, error)) {
		mcp.AddTool(s, &mcp.Tool{Name: tool},
			func(_ context.Context, _ *mcp.CallToolRequest, in formInput) (*mcp.CallToolResult, any, error) {
				text, err := do(in)
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
			})
	}
	value := func(in formInput) (string, error) {
		content, err := os.ReadFile(filepath.Join(dir, in.Form))
		if err == nil && len(content) == 0 {
			err = errors.New("the form has no value")
		}
		return string(content), err
	}
	add("create_form", func(formInput) (string, error) {
		n, err := addEffect(dir, "create")
		name := fmt.Sprint("form-", n)
		return name, errors.Join(err, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	})
	add("set_value", func(in formInput) (string, error) {
		return "set to " + in.Value, os.WriteFile(filepath.Join(dir, in.Form), []byte(in.Value), 0o600)
	})
	add("validate_form", value)
	add("submit_form", func(in formInput) (string, error) {
		text, err := value(in)
		if err != nil {
			return "", err
		}
		n, err := addEffect(dir, "submit")
		return fmt.Sprintf("submission %d of %s", n, text), err
	})
}

var flowRules = regexp.MustCompile("(?ms)```yaml\n(server: forms\n.*?)```")

// An agent creates a form, sets it, validates it and submits it, and repeats each step, as docs/agents.md guards them:
// there is one form and one submission, a step that sets runs each time, and a submission that was refused as
// incomplete is not taken for a repeat of the complete one.
func TestGuardFlow(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/agents.md"))(t)
	rules := flowRules.FindStringSubmatch(string(page))
	if rules == nil {
		t.Fatal("docs/agents.md has no configuration for forms")
	}
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "guard.yaml"), []byte(rules[1]), 0o600))
	h := startGuard(t, dir)
	call := func(tool string, in formInput) toolReply { return callTool(t.Context(), h.session, tool, in) }
	want := func(step string, r toolReply, text string, replayed bool) {
		t.Helper()
		if r.isError || r.replayed != replayed || r.text != text {
			t.Errorf("%s: %+v", step, r)
		}
	}
	want("create", call("create_form", formInput{Name: "passport"}), "form-1", false)
	want("create again", call("create_form", formInput{Name: "passport"}), "form-1", true)
	form := formInput{Form: "form-1"}
	for range 2 { // an incomplete form: the refusal has changed nothing, and is not kept
		if r := call("submit_form", form); !r.isError || r.replayed || !strings.Contains(r.text, "no value") {
			t.Errorf("an incomplete form: %+v", r)
		}
	}
	for _, value := range []string{"A", "B", "A"} {
		want("set", call("set_value", formInput{Form: "form-1", Value: value}), "set to "+value, false)
		want("validate", call("validate_form", form), value, false)
	}
	want("submit", call("submit_form", form), "submission 2 of A", false)
	want("submit again", call("submit_form", form), "submission 2 of A", true)
	h.kill()
	h = startGuard(t, dir)
	want("create after a kill", call("create_form", formInput{Name: "passport"}), "form-1", true)
	want("submit after a kill", call("submit_form", form), "submission 2 of A", true)
	if creations, submissions := effects(dir, "create"), effects(dir, "submit"); creations != 1 || submissions != 1 {
		t.Errorf("%d forms and %d submissions", creations, submissions)
	}
}
