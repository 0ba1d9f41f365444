package receipt

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/witness"
)

// vector is a receipt for the tests of verifiers in other languages.
type vector struct {
	Name      string   `json:"name"`
	File      string   `json:"file"`
	Policy    string   `json:"policy"`
	Refused   string   `json:"refused,omitempty"`
	ClientID  string   `json:"clientId,omitempty"`
	Cosigners []string `json:"cosigners,omitempty"`
}

func (v *vector) judge(t *testing.T) {
	t.Helper()
	r, err := Parse([]byte(v.File))
	var p *witness.Policy
	if err == nil {
		p, err = witness.ParsePolicy([]byte(v.Policy))
	}
	var s *Statement
	if err == nil {
		s, err = r.Verify(p)
	}
	if err != nil {
		v.Refused = err.Error()
		return
	}
	v.ClientID = s.ClientID
	for _, w := range s.Cosigners {
		v.Cosigners = append(v.Cosigners, fmt.Sprintf("%s %d", w.Name, w.Time.Unix()))
	}
}

// cosign returns the public key of a witness, and the line that it adds to a checkpoint.
func cosign(t *testing.T, name string, at uint64, checkpoint string) (vkey, line string) {
	t.Helper()
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte(name[:1]), ed25519.SeedSize))
	vkey = vkeyOf(name, 4, private)
	key := must.Get(witness.ParseKey(vkey))(t)
	text, _, _ := strings.Cut(checkpoint, "\n\n")
	message := fmt.Sprintf("cosignature/v1\ntime %d\n%s\n", at, text)
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, key.KeyHash()), at)
	b = append(b, ed25519.Sign(private, []byte(message))...)
	return vkey, fmt.Sprintf("\u2014 %s %s\n", name, base64.StdEncoding.EncodeToString(b))
}

// vkeyOf returns a public key.
func vkeyOf(name string, kind byte, private ed25519.PrivateKey) string {
	public := private.Public().(ed25519.PublicKey) //nolint:forcetypeassert // By its documentation.
	b := append([]byte{kind}, public...)
	sum := sha256.Sum256(append([]byte(name+"\n"), b...))
	return fmt.Sprintf("%s+%08x+%s", name, sum[:4], base64.StdEncoding.EncodeToString(b))
}

// vectors returns receipts that are true, and some that are not for one reason each.
func vectors(t *testing.T) (all []*vector) {
	t.Helper()
	x := goldenTransaction()
	r, policy := receiptOf(t, x.Leaf())
	log, _, _ := strings.Cut(policy, "\n")
	plain := string(r.Append(nil))
	add := func(name, file, policy string) { all = append(all, &vector{Name: name, File: file, Policy: policy}) }
	add("golden", plain, policy)
	const dash = "\n\u2014 "
	for _, change := range [][3]string{
		{"another version of the format", "@v1", "@v2"},
		{"no extra", "extra ", ""},
		{"leading zero", "index 3", "index 03"},
		{"negative", "index 3", "index -3"},
		{"another index", "index 3", "index 2"},
		{"beyond", "index 3", "index 5"},
		{"no hash", "index 3\n", "index 3\nAAAA\n"},
		{"no empty line", "\n\n", "\n"},
		{"carriage return", "\n\n", "\n\r\n\n"},
		{"spaces in base64", "extra A", "extra  A"},
		{"an unknown signature", dash, dash + "other.example AAAAAAA=" + dash},
		{"an unsigned line", "\n\u2014", "\nhello\n\u2014"},
		{"a signature without bytes", dash, dash + "other.example AAAA" + dash},
		{"another name", "\u2014 log.", "\u2014 dog."},
		{"another size", "\n5\n", "\n6\n"},
	} {
		changed := strings.Replace(plain, change[1], change[2], 1)
		if changed == plain {
			t.Errorf("%s changes nothing", change[0])
		}
		add(change[0], changed, policy)
	}
	add("not ended", strings.TrimSuffix(plain, "\n"), policy)
	add("more after it", plain+"\n", policy)
	add("long numbers", strings.Replace(plain, "extra ", "extra gA", 1), policy)

	// What the right key has signed.
	for name, change := range map[string]func(leaf []byte) []byte{
		"a mark in a name": func(leaf []byte) []byte {
			return bytes.Replace(leaf, []byte("\x06till-7"), []byte("\x09\ufefftill-7"), 1)
		},
		"a byte more":      func(leaf []byte) []byte { return append(leaf, 0) },
		"a byte less":      func(leaf []byte) []byte { return leaf[:len(leaf)-1] },
		"spare bits":       func(leaf []byte) []byte { return append(leaf[:len(leaf)-1], 5) },
		"bits of all":      func(leaf []byte) []byte { return append(leaf[:len(leaf)-1], 3) },
		"too many bits":    func(leaf []byte) []byte { return append(leaf[:len(leaf)-2], 2, 1, 0) },
		"another encoding": func(leaf []byte) []byte { return append([]byte{3}, leaf[1:]...) },
		"a long number":    func(leaf []byte) []byte { return append(leaf[:len(leaf)-2], 0x81, 0, 1) },
		"no operations":    func(leaf []byte) []byte { leaf[len(leaf)-35] = 0; return leaf },
		"another ledger":   func(leaf []byte) []byte { leaf[8]++; return leaf },
		"another time":     func(leaf []byte) []byte { leaf[24]++; return leaf },
		"another scope":    func(leaf []byte) []byte { return bytes.Replace(leaf, []byte("acme"), []byte("acmf"), 1) },
		"two billion writes": func(leaf []byte) []byte {
			n := len(leaf) - 35
			return append(append(leaf[:n:n], 0x80, 0x80, 0x80, 0x80, 8), append(bytes.Clone(leaf[n+1:n+33]), 0)...)
		},
	} {
		signed, _ := receiptOf(t, change(x.Leaf()))
		add(name, string(signed.Append(nil)), policy)
	}
	r.Position = 0
	add("another position", string(r.Append(nil)), policy)

	aKey, aLine := cosign(t, "a.example", 1_800_000_000, string(r.Checkpoint))
	bKey, bLine := cosign(t, "b.example", 1_800_000_001, string(r.Checkpoint))
	_, never := cosign(t, "b.example", 0, string(r.Checkpoint))
	_, late := cosign(t, "b.example", 1<<63, string(r.Checkpoint))
	_, other := cosign(t, "b.example", 1, "log.example/1\n5\n\n")
	both := log + "\nwitness a " + aKey + " https://a.example/\nwitness b " + bKey +
		"\ngroup both all a b\nquorum both\n"
	add("cosigned", plain+bLine+aLine, both)
	add("cosigned by one", plain+aLine, both)
	add("cosigned by one twice", plain+aLine+aLine, both)
	add("cosigned by none", plain, both)
	add("cosigned, not asked for", plain+aLine, policy)
	add("a cosignature of another checkpoint", plain+aLine+other, strings.Replace(both, " all ", " any ", 1))
	add("a cosignature of no time", plain+aLine+never, strings.Replace(both, " all ", " any ", 1))
	add("a cosignature of a negative time", plain+aLine+late, strings.Replace(both, " all ", " any ", 1))
	add("cosigned by any", plain+bLine, strings.Replace(both, " all ", " any ", 1))
	add("cosigned by the one that must", plain+bLine, strings.Replace(both, "quorum both", "quorum b", 1))
	add("cosigned by the other one", plain+aLine, strings.Replace(both, "quorum both", "quorum b", 1))
	add("groups of groups", plain+bLine+aLine, strings.Replace(both, "quorum both", "group g 1 both\nquorum g", 1))
	againKey, again := cosign(t, "ab.example", 1_800_000_000, string(r.Checkpoint)) // the key of a.example
	add("policy: one key under two names", plain+aLine+again, strings.Replace(both, bKey, againKey, 1))
	const origin = "log.example/0123456789abcdef"
	asLog, line := cosign(t, origin, 1_800_000_000, string(r.Checkpoint))
	add("policy: a cosignature of the log", plain+line, "log "+asLog+"\nquorum none\n")
	unknown := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	for name, change := range map[string][2]string{
		"one key twice":            {"witness b " + bKey, "witness b " + aKey},
		"the log as a witness":     {"witness b " + bKey, "witness b " + strings.TrimPrefix(log, "log ")},
		"a witness as the log":     {log, "log " + bKey},
		"one name twice":           {"witness b", "witness a"},
		"a member twice":           {"all a b", "1 a a"},
		"an unknown member":        {"all a b", "all a c"},
		"more than all":            {"all a b", "3 a b"},
		"fewer than one":           {"all a b", "0 a b"},
		"no threshold":             {"all a b", "most a b"},
		"an unknown quorum":        {"quorum both", "quorum c"},
		"two quorums":              {"quorum both", "quorum none\nquorum both"},
		"no quorum":                {"quorum both\n", ""},
		"a policy that is cut off": {"quorum both\n", "quorum both"},
		"a control character":      {"quorum both", "quorum both\r"},
		"no URL":                   {"https://a.example/", "ftp://a.example/"},
		"an unknown line":          {"quorum both", "quorums both"},
		"another key id":           {log, strings.Replace(log, "+5", "+6", 1)},
		"another key":              {log, "log " + vkeyOf(origin, 1, unknown)},
		"another origin":           {log, "log " + vkeyOf("log.example/1123456789abcdef", 1, unknown)},
		"comments":                 {log, "# of\n\n \t" + log},
	} {
		if changed := strings.Replace(both, change[0], change[1], 1); changed == both {
			t.Errorf("%s changes nothing", name)
		} else {
			add("policy: "+name, plain+bLine+aLine, changed)
		}
	}
	return all
}

// What the verifiers in other languages are tested with is what this one says.
func TestVectors(t *testing.T) {
	t.Parallel()
	all := vectors(t)
	sort.SliceStable(all[1:], func(i, j int) bool { return all[1+i].Name < all[1+j].Name })
	for _, v := range all {
		v.judge(t)
	}
	path := filepath.Join("testdata", "vectors.json")
	content := append(must.Get(json.MarshalIndent(all, "", "  "))(t), '\n')
	if os.Getenv("SEQLEDGER_UPDATE") != "" {
		must.Do(t, os.WriteFile(path, content, 0o600))
	}
	must.Equal(t, string(content), string(must.Get(os.ReadFile(path))(t)))
}
