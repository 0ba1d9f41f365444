package witness

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// Policy says which logs are believed, and which witnesses must have cosigned their checkpoints.
type Policy struct {
	Logs      []Party
	Witnesses []Party

	groups  []group
	quorum  string
	inGroup map[string]bool // of each witness and group
}

// Party is a log or a witness of a policy.
type Party struct {
	Name string // a log's is the origin of its checkpoints; a witness's has no meaning outside the policy
	Key  *Key
	URL  string // empty if the policy has none
}

// group is met if least of its members are.
type group struct {
	name    string
	least   int
	members []string
}

// none is the quorum that needs no witness.
const none = "none"

// ParsePolicy reads a policy. Errors name the line and the field.
func ParsePolicy(text []byte) (*Policy, error) {
	p := &Policy{inGroup: map[string]bool{}}
	for n, line := range strings.Split(string(text), "\n") {
		if err := p.read(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	switch {
	case len(text) > 0 && text[len(text)-1] != '\n':
		return nil, errors.New("the last line does not end in a newline: it may be cut off")
	case p.quorum == "":
		return nil, errors.New("there is no line quorum: quorum none needs no witness")
	}
	return p, nil
}

// read reads a line.
func (p *Policy) read(line string) (err error) {
	bad := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	if at := strings.IndexFunc(line, bad); at >= 0 {
		return fmt.Errorf("has the character %#02x; only a newline may end a line", line[at])
	}
	f := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(f) == 0 || f[0][0] == '#' {
		return nil
	}
	switch n := len(f); {
	case f[0] == "log" && (n == 2 || n == 3):
		p.Logs, err = add(p.Logs, LogKey, "", f[1:])
	case f[0] == "witness" && (n == 3 || n == 4):
		if p.Witnesses, err = add(p.Witnesses, WitnessKey, f[1], f[2:]); err == nil {
			err = p.define(f[1])
		}
	case f[0] == "group" && n >= 4:
		err = p.group(f[1], f[2], f[3:])
	case f[0] == "quorum" && n == 2 && p.quorum == "":
		if _, is := p.inGroup[f[1]]; !is && f[1] != none {
			err = fmt.Errorf("name: %q must be none, or defined in an earlier line", f[1])
		}
		p.quorum = f[1]
	default:
		err = errors.New("must be log VKEY [URL], witness NAME VKEY [URL], group NAME all|any|K MEMBER..., or, once, " +
			"quorum NAME")
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", f[0], err)
	}
	return err
}

// add adds a log or a witness, whose key must be its own. The name of a log is that of its key.
func add(parties []Party, kind Kind, name string, fields []string) ([]Party, error) {
	key, err := ParseKey(fields[0])
	switch {
	case err != nil:
		return nil, fmt.Errorf("vkey: %w", err)
	case key.kind != kind || key.private != nil:
		return nil, fmt.Errorf("vkey: must be a public key of the signature type %#02x", byte(kind))
	case slices.ContainsFunc(parties, func(o Party) bool { return o.Key.public.Equal(key.public) }):
		return nil, errors.New("vkey: an earlier line has the same key")
	}
	address := strings.Join(fields[1:], "")
	u, err := url.Parse(address)
	isHTTP := err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
	if kind == WitnessKey && address != "" && !isHTTP {
		return nil, fmt.Errorf("url: %q must be http://HOST or https://HOST, with a path if need be", address)
	}
	return append(parties, Party{cmp.Or(name, key.name), key, address}), nil
}

func (p *Policy) define(name string) error {
	if _, is := p.inGroup[name]; is || name == none {
		return fmt.Errorf("name: %q has a meaning already", name)
	}
	p.inGroup[name] = false
	return nil
}

func (p *Policy) group(name, least string, members []string) error {
	for _, m := range members {
		if inGroup, is := p.inGroup[m]; inGroup || !is {
			return fmt.Errorf("member: %q must be defined in an earlier line, and in no other group", m)
		}
		p.inGroup[m] = true
	}
	n, err := strconv.ParseUint(least, 10, 31)
	switch {
	case least == "all":
		n = uint64(len(members))
	case least == "any":
		n = 1
	case err != nil || n < 1 || n > uint64(len(members)):
		return fmt.Errorf("threshold: %q must be all, any or a number from 1 to %d", least, len(members))
	}
	p.groups = append(p.groups, group{name, int(n), members})
	return p.define(name)
}

// Cosigner is a witness that has cosigned a checkpoint.
type Cosigner struct {
	Name string    // in the policy
	Time time.Time // that the witness gives
}

// Satisfied returns what a signed checkpoint says and the witnesses that have cosigned it, in the order of the policy.
// It fails unless a log of that origin and the witnesses of the quorum have signed.
func (p *Policy) Satisfied(signed []byte) (c Checkpoint, by []Cosigner, err error) {
	origin, _, _ := bytes.Cut(signed, []byte("\n"))
	logs := slices.DeleteFunc(slices.Clone(p.Logs), func(l Party) bool { return l.Name != string(origin) })
	n, err := open(signed, append(logs, p.Witnesses...))
	if err == nil {
		c, err = ParseCheckpoint(n.Text)
	}
	if err != nil {
		return c, nil, err
	}
	met := map[string]bool{none: true}
	for _, w := range p.Witnesses {
		own := func(s note.Signature) bool { return s.Name == w.Key.name && s.Hash == w.Key.KeyHash() }
		if i := slices.IndexFunc(n.Sigs, own); i >= 0 {
			b, _ := base64.StdEncoding.DecodeString(n.Sigs[i].Base64) // a key id, and what Verify has read
			by = append(by, Cosigner{w.Name, time.Unix(int64(binary.BigEndian.Uint64(b[4:])), 0).UTC()})
			met[w.Name] = true
		}
	}
	for _, g := range p.groups { // members are defined before their group
		n := 0
		for _, m := range g.members {
			if met[m] {
				n++
			}
		}
		met[g.name] = n >= g.least
	}
	switch {
	case len(n.Sigs) == len(by):
		err = fmt.Errorf("no log of the policy has signed this checkpoint of %q", c.Origin)
	case !met[p.quorum]:
		err = fmt.Errorf("the quorum %s is not met: %d of %d witnesses have cosigned", p.quorum, len(by),
			len(p.Witnesses))
	}
	return c, by, err
}

// open is note.Open with the keys of some parties.
func open(signed []byte, parties []Party) (*note.Note, error) {
	keys := make([]note.Verifier, len(parties))
	for i, p := range parties {
		keys[i] = p.Key
	}
	return note.Open(signed, note.VerifierList(keys...))
}
