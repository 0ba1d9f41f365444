package auth

import (
	"bytes"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/seqledger/seqledger/internal/yamlfile"
)

// Entry is a new key for an auth file.
type Entry struct {
	// ID names the key; Hash is [NewKey]'s.
	ID   string `yaml:"id"`
	Hash string `yaml:"hash"`
	// Role, Scopes and ClientIDs are as in the file.
	Role      string   `yaml:"role"`
	Scopes    []string `yaml:"scopes,flow"`
	ClientIDs []string `yaml:"client_ids,flow,omitempty"`
	// Expires is when the key ends, in RFC 3339; empty is never.
	Expires string `yaml:"expires,omitempty"`
}

// Validate returns the mistake in the entry, or nil.
func (e *Entry) Validate() error {
	if err := validateKeyID(e.ID); err != nil {
		return fmt.Errorf("id %w", err)
	}
	if _, err := newGrant(e.Role, e.Scopes, e.ClientIDs); err != nil {
		return err
	}
	if e.Expires == "" {
		return nil
	}
	if _, err := time.Parse(time.RFC3339, e.Expires); err != nil {
		return fmt.Errorf("expires must be a time with its zone, such as 2027-01-31T00:00:00Z, and is %q", e.Expires)
	}
	return nil
}

// entryFile is a file with nothing but keys.
type entryFile struct {
	Keys []*Entry `yaml:"keys"`
}

// YAML returns an auth file that has this key alone.
func (e *Entry) YAML() (string, error) {
	content, err := encodeYAML(entryFile{[]*Entry{e}})
	return string(content), err
}

func encodeYAML(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return b.Bytes(), encoder.Close()
}

// AppendKey returns an auth file with one more key. content is empty for a new file, otherwise it must be valid; files
// that it names are not checked. Comments are kept; the layout may change.
func AppendKey(path string, content []byte, e *Entry) ([]byte, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(content)) == 0 {
		text, err := e.YAML()
		return []byte(text), err
	}
	root, err := yamlfile.Parse(content)
	if err != nil {
		return nil, &FileError{Path: path, Problem: err.Error()}
	}
	if root.Kind != yaml.MappingNode {
		return nil, &FileError{Path: path, Line: root.Line, Problem: "must be a mapping of keys, tokens"}
	}
	var added yaml.Node
	if err := added.Encode(entryFile{[]*Entry{e}}); err != nil {
		return nil, err
	}
	name, list := added.Content[0], added.Content[1]
	found := false
	for i := 0; i < len(root.Content); i += 2 {
		if root.Content[i].Value == name.Value && root.Content[i+1].Kind == yaml.SequenceNode {
			keys := root.Content[i+1]
			keys.Style = 0 // a list in brackets would take the whole key on one line
			keys.Content, found = append(keys.Content, list.Content...), true
		}
	}
	if !found {
		root.Content = append(root.Content, name, list)
	}
	changed, err := encodeYAML(root)
	if err != nil {
		return nil, err
	}
	// Check the result: an earlier mistake, or a new one such as a duplicate id, must not get into the file.
	_, err = parseFile(path, changed, nil)
	return changed, err
}
