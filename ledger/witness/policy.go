package witness

import (
	"bytes"
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

	groups []group
	quorum string
}

// Party is a log or a witness of a policy.
type Party struct {
	Name string // a log's is the origin of its checkpoints; a witness's has no meaning outside the policy
	Key  *PublicKey
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

// parser has what the lines so far define.
type parser struct {
	Policy

	inGroup map[string]bool // by the name of a witness or a group
}

// ParsePolicy reads a policy. Errors name the line and the field.
func ParsePolicy(text []byte) (*Policy, error) {
	p := parser{inGroup: map[string]bool{}}
	for n, line := range strings.Split(string(text), "\n") {
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	switch {
	case len(text) > 0 && text[len(text)-1] != '\n':
		return nil, errors.New("the last line does not end in a newline: it may be cut off")
	case p.quorum == "":
		return nil, errors.New("there is no line quorum: quorum none needs no witness")
	}
	return &p.Policy, nil
}

func (p *parser) line(line string) (err error) {
	bad := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	if at := strings.IndexFunc(line, bad); at >= 0 {
		return fmt.Errorf("has the character %#02x; only a newline may end a line", line[at])
	}
	fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(fields) == 0 || fields[0][0] == '#' {
		return nil
	}
	switch n := len(fields); {
	case fields[0] == "log" && (n == 2 || n == 3):
		err = p.log(fields[1], strings.Join(fields[2:], ""))
	case fields[0] == "witness" && (n == 3 || n == 4):
		err = p.witness(fields[1], fields[2], strings.Join(fields[3:], ""))
	case fields[0] == "group" && n >= 4:
		err = p.group(group{name: fields[1], members: fields[3:]}, fields[2])
	case fields[0] == "quorum" && n == 2:
		err = p.setQuorum(fields[1])
	default:
		err = errors.New("must be log VKEY [URL], witness NAME VKEY [URL], group NAME all|any|K MEMBER... or " +
			"quorum NAME")
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", fields[0], err)
	}
	return err
}

func (p *parser) log(vkey, address string) error {
	key, err := parsePartyKey(vkey, LogKey, p.Logs)
	if err == nil {
		p.Logs = append(p.Logs, Party{key.name, key, address})
	}
	return err
}

func (p *parser) witness(name, vkey, address string) error {
	key, err := parsePartyKey(vkey, WitnessKey, p.Witnesses)
	if err != nil {
		return err
	}
	u, err := url.Parse(address)
	if err != nil || address != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return fmt.Errorf("url: %q must be http://HOST or https://HOST, with a path if need be", address)
	}
	p.Witnesses = append(p.Witnesses, Party{name, key, address})
	return p.define(name)
}

// parsePartyKey reads a key of a kind that none of the others has.
func parsePartyKey(vkey string, kind Kind, others []Party) (*PublicKey, error) {
	key, err := ParsePublicKey(vkey)
	switch {
	case err != nil:
	case key.kind != kind:
		err = fmt.Errorf("the signature type must be %#02x and is %#02x", byte(kind), byte(key.kind))
	case slices.ContainsFunc(others, func(o Party) bool { return o.Key.key.Equal(key.key) }):
		err = errors.New("an earlier line has the same key")
	default:
		return key, nil
	}
	return nil, fmt.Errorf("vkey: %w", err)
}

func (p *parser) define(name string) error {
	if _, is := p.inGroup[name]; is || name == none {
		return fmt.Errorf("name: %q has a meaning already", name)
	}
	p.inGroup[name] = false
	return nil
}

func (p *parser) group(g group, least string) error {
	for _, m := range g.members {
		if inGroup, is := p.inGroup[m]; inGroup || !is {
			return fmt.Errorf("member: %q must be defined in an earlier line, and in no other group", m)
		}
		p.inGroup[m] = true
	}
	switch n := len(g.members); least {
	case "all":
		g.least = n
	case "any":
		g.least = 1
	default:
		k, err := strconv.ParseUint(least, 10, 31)
		if g.least = int(k); err != nil || g.least < 1 || g.least > n {
			return fmt.Errorf("threshold: %q must be all, any or a number from 1 to %d", least, n)
		}
	}
	p.groups = append(p.groups, g)
	return p.define(g.name)
}

func (p *parser) setQuorum(name string) error {
	if _, is := p.inGroup[name]; !is && name != none {
		return fmt.Errorf("name: %q must be none, or defined in an earlier line", name)
	}
	if p.quorum != "" {
		return errors.New("there is one already")
	}
	p.quorum = name
	return nil
}

// Cosigner is a witness that has cosigned a checkpoint.
type Cosigner struct {
	Name string    // in the policy
	Time time.Time // that the witness gives
}

// Satisfied returns what a signed checkpoint says and the witnesses that have cosigned it, in the order of the policy.
// It fails unless a log of that origin and the witnesses of the quorum have signed.
func (p *Policy) Satisfied(signed []byte) (c Checkpoint, by []Cosigner, err error) {
	logs := p.logs(signed)
	n, err := open(signed, append(slices.Clone(logs), p.Witnesses...))
	if err == nil {
		c, err = ParseCheckpoint(n.Text)
	}
	if err != nil {
		return c, nil, err
	}
	met := map[string]bool{none: true}
	for _, w := range p.Witnesses {
		if s, is := signatureOf(n, w.Key); is {
			met[w.Name] = true
			by = append(by, Cosigner{w.Name, cosignedAt(s)})
		}
	}
	for _, g := range p.groups { // each behind its members
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

// logs returns the logs whose origin a signed checkpoint has.
func (p *Policy) logs(signed []byte) []Party {
	origin, _, _ := bytes.Cut(signed, []byte("\n"))
	return slices.DeleteFunc(slices.Clone(p.Logs), func(l Party) bool { return l.Name != string(origin) })
}

// open is note.Open with the keys of some parties.
func open(signed []byte, parties []Party) (*note.Note, error) {
	keys := make([]note.Verifier, len(parties))
	for i, p := range parties {
		keys[i] = p.Key
	}
	return note.Open(signed, note.VerifierList(keys...))
}

// signatureOf returns the verified signature of a key.
func signatureOf(n *note.Note, key *PublicKey) (note.Signature, bool) {
	i := slices.IndexFunc(n.Sigs, func(s note.Signature) bool { return s.Name == key.name && s.Hash == key.KeyHash() })
	if i < 0 {
		return note.Signature{}, false
	}
	return n.Sigs[i], true
}

// cosignedAt returns the time in a verified cosignature.
func cosignedAt(s note.Signature) time.Time {
	b, _ := base64.StdEncoding.DecodeString(s.Base64) // it was read before
	return time.Unix(int64(binary.BigEndian.Uint64(b[4:])), 0).UTC()
}
