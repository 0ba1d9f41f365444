package witness_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	formats "github.com/transparency-dev/formats/witness"
	"golang.org/x/mod/sumdb/note"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/witness"
)

// parties are keys and the lines of a policy that name them: w0, w1 and so on.
type parties struct {
	log       *witness.Key
	witnesses []*witness.Key
	lines     string
}

func newParties(t testing.TB, witnesses int) *parties {
	t.Helper()
	p := &parties{log: newKey(t, witness.LogKey, origin)}
	p.lines = fmt.Sprintf("log %s\n", p.log)
	for i := range witnesses {
		p.witnesses = append(p.witnesses, newKey(t, witness.WitnessKey, fmt.Sprint("witness.example/", i)))
		p.lines += fmt.Sprintf("witness w%d %s https://witness.example/%d\n", i, p.witnesses[i], i)
	}
	return p
}

func (p *parties) policy(t testing.TB, lines string) *witness.Policy {
	t.Helper()
	return must.Get(witness.ParsePolicy([]byte(p.lines + lines)))(t)
}

// signed returns the text with signatures.
func signed(t testing.TB, text string, by ...note.Signer) []byte {
	t.Helper()
	return must.Get(note.Sign(&note.Note{Text: text}, by...))(t)
}

// The names of those that count come in the order of the policy, with the times of their cosignatures.
func TestSatisfied(t *testing.T) {
	t.Parallel()
	p := newParties(t, 3)
	policy := p.policy(t, "group g 2 w0 w1 w2\nquorum g\n")
	stranger := newKey(t, witness.WitnessKey, "witness.example/1")
	before := time.Now().Truncate(time.Second)
	c, by, err := policy.Satisfied(signed(t, text, p.witnesses[2], stranger, p.log, p.witnesses[0]))
	must.Do(t, err)
	check.Equal(t, c.String(), text)
	check.Equal(t, len(by), 2)
	check.Equal(t, by[0].Name+" "+by[1].Name, "w0 w2")
	check.Equal(t, !by[0].Time.Before(before) && !by[0].Time.After(time.Now()), true, "%v: %v", by[0].Time)

	_, _, err = policy.Satisfied(signed(t, text, p.log, p.witnesses[1], p.witnesses[1], stranger))
	check.ErrorContains(t, err, "the quorum g is not met: 1 of 3 witnesses have cosigned")
	_, _, err = p.policy(t, "quorum none\n").Satisfied(signed(t, text, p.log))
	check.Is(t, err, nil)
	_, _, err = p.policy(t, "quorum w1\n").Satisfied(signed(t, text, p.log, p.witnesses[1]))
	check.Is(t, err, nil)
}

// What is signed by strangers, by a log for another's origin or by witnesses alone is refused.
func TestUnsatisfied(t *testing.T) {
	t.Parallel()
	p := newParties(t, 2)
	other := newKey(t, witness.LogKey, "other.example/log")
	policy := p.policy(t, "log "+other.String()+"\ngroup g any w0 w1\nquorum g\n")
	w := p.witnesses[0]
	good := string(signed(t, text, p.log, w))
	otherText := strings.Replace(text, origin, other.Name(), 1)
	must.Do(t, third(policy.Satisfied(signed(t, otherText, other, w))))
	for _, test := range []struct {
		says string
		bad  []byte
	}{
		{"no log of the policy has signed", signed(t, text, w)},
		{"no log of the policy has signed", signed(t, text, other, w)}, // whose name is not the origin
		{"no log of the policy has signed", signed(t, text, other.As(origin), w)},
		{"no log of the policy has signed", signed(t, text, newKey(t, witness.LogKey, origin), w)},
		{"no verifiable", signed(t, text, newKey(t, witness.LogKey, "x"))},
		{"invalid signature for key", []byte(strings.Replace(good, "\n7\n", "\n8\n", 1))},
		{"the size", signed(t, strings.Replace(text, "\n7\n", "\n07\n", 1), p.log, w)},
		{"malformed", nil},
		{"malformed", []byte(text)},
		{"must have lines", signed(t, origin+"\n", p.log, w)},
		{"no empty line", signed(t, text+"\nx\n", p.log, w)},
	} {
		check.ErrorContains(t, third(policy.Satisfied(test.bad)), test.says, "%q", test.bad)
	}
	// Each part of a good one counts.
	for i := range good {
		bad := []byte(good)
		bad[i] ^= 1
		if _, by, err := policy.Satisfied(bad); err == nil && (len(by) != 1 || !strings.HasPrefix(string(bad), text)) {
			t.Errorf("byte %d: %s", i, bad)
		}
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }

func TestPoliciesThatAreRefused(t *testing.T) {
	t.Parallel()
	p := newParties(t, 3)
	spare, log := newKey(t, witness.WitnessKey, "x"), newKey(t, witness.LogKey, "x")
	for lines, says := range map[string]string{
		"":                                      "there is no line quorum",
		"quorum none":                           "does not end in a newline",
		"quorum none\r\n":                       "line 5: has the character 0x0d",
		"# \x7f\nquorum none\n":                 "line 5: has the character 0x7f",
		"quorum\n":                              "line 5: quorum: must be log",
		"quorum none w1\n":                      "line 5: quorum: must be log",
		"quorum none # nobody\n":                "line 5: quorum: must be log",
		"Quorum none\n":                         "line 5: Quorum: must be log",
		"quorum none\n\nquorum w1\n":            "line 7: quorum: must be log",
		"quorum w3\n":                           `line 5: quorum: name: "w3" must be none, or defined`,
		"group g all\nquorum g\n":               "line 5: group: must be log",
		"group g 0 w1\n":                        `line 5: group: threshold: "0"`,
		"group g 3 w1 w2\n":                     `line 5: group: threshold: "3" must be all, any or a number from 1 to 2`,
		"group g +1 w1\n":                       "threshold",
		"group g 4294967297 w1\n":               "threshold",
		"group g 18446744073709551617 w1\n":     "threshold",
		"group g two w1 w2\n":                   "threshold",
		"group g any none\n":                    `member: "none"`,
		"group g any w1 w1\n":                   `member: "w1" must be defined in an earlier line, and in no other group`,
		"group g any w1\ngroup h any w1\n":      `line 6: group: member: "w1"`,
		"group g any g\n":                       `member: "g"`,
		"group g any h\ngroup h any w1\n":       `line 5: group: member: "h"`,
		"group w2 any w1\n":                     `line 5: group: name: "w2" has a meaning already`,
		"group none any w1\n":                   `name: "none"`,
		"witness w1 " + spare.String() + "\n":   `line 5: witness: name: "w1" has a meaning already`,
		"witness none " + spare.String() + "\n": `name: "none"`,
		"witness x " + log.String() + "\n":      "line 5: witness: vkey: must be a public key of",
		"witness x " + created(t, witness.WitnessKey, spare) + "\n": "line 5: witness: vkey: must be a public key",
		"witness x\n":   "line 5: witness: must be log",
		"witness x y\n": "line 5: witness: vkey: must be a name",
		"witness x " + p.witnesses[0].As("y").String() + "\n":        "line 5: witness: vkey: an earlier",
		"log " + p.log.As("y").String() + "\n":                       "line 5: log: vkey: an earlier",
		"log " + spare.String() + "\n":                               "line 5: log: vkey: must be a public key",
		"log " + log.String() + " a b\n":                             "line 5: log: must be log",
		"witness x " + spare.String() + " ftp://w.example\n":         "line 5: witness: url: \"ftp://w.example\"",
		"witness x " + spare.String() + " https://\n":                "line 5: witness: url:",
		"witness x " + spare.String() + " witness.example\n":         "line 5: witness: url:",
		"witness x " + spare.String() + " https://w.example/%zz\n":   "line 5: witness: url:",
		"witness\u00a0x " + spare.String() + " https://w.example/\n": "must be log",
	} {
		check.ErrorContains(t, check.Err(witness.ParsePolicy([]byte(p.lines+lines))), says, "%q", lines)
	}
	// White space, comments and names of any octets are fine, and no URL need be there.
	policy := must.Get(witness.ParsePolicy([]byte("\n\t #\xff\n \twitness \xe2\x84\xaa\xff\t\t " + spare.String() +
		"  \n log " + log.String() + " data:,x\nquorum \xe2\x84\xaa\xff\n")))(t)
	check.Equal(t, policy.Witnesses[0].Name+policy.Witnesses[0].URL, "\xe2\x84\xaa\xff")
	check.Equal(t, policy.Logs[0].Name+" "+policy.Logs[0].URL, "x data:,x")
	check.Equal(t, policy.Logs[0].Key.String(), log.String())
}

// Random groups within groups are met by the same cosignatures as with transparency-dev/formats.
func TestPoliciesOfOthers(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	p := newParties(t, 6)
	met := 0
	for range 200 {
		names := []string{"w0", "w1", "w2", "w3", "w4", "w5"}
		var lines strings.Builder
		for g := 0; len(names) > 1; g++ {
			random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			n := 1 + random.IntN(min(3, len(names)))
			least := []string{"all", "any", fmt.Sprint(1 + random.IntN(n))}[random.IntN(3)]
			fmt.Fprintf(&lines, "group g%d %s %s\n", g, least, strings.Join(names[:n], " "))
			names = append(slices.Clone(names[n:]), fmt.Sprint("g", g))
			if random.IntN(12) == 0 {
				break
			}
		}
		fmt.Fprintf(&lines, "quorum %s\n", names[len(names)-1])
		signers := []note.Signer{p.log}
		for _, w := range p.witnesses {
			if random.IntN(2) == 0 {
				signers = append(signers, w)
			}
		}
		cosigned := signed(t, text, signers...)
		theirs := must.Get(formats.ParsePolicy([]byte(p.lines + lines.String())))(t)
		_, by, err := p.policy(t, lines.String()).Satisfied(cosigned)
		check.Equal(t, err == nil, theirs.Satisfied(cosigned), "%s%v: %v", lines.String(), by)
		check.Equal(t, len(by), len(signers)-1)
		if err == nil {
			met++
		}
	}
	if met < 20 || met > 180 {
		t.Errorf("%d of 200 were met", met)
	}
}

func FuzzPolicy(f *testing.F) {
	p := newParties(f, 2)
	cosigned := signed(f, text, p.log, p.witnesses[0])
	f.Add([]byte(p.lines+"group g 2 w0 w1\nquorum g\n"), cosigned)
	f.Add([]byte("witness  w "+p.witnesses[0].String()+"\t\n#\nquorum w\n"), cosigned)
	f.Fuzz(func(t *testing.T, lines, signed []byte) {
		policy, err := witness.ParsePolicy(lines)
		if err != nil {
			return
		}
		c, by, err := policy.Satisfied(signed)
		if err == nil && (!strings.HasPrefix(string(signed), c.String()) || len(by) > len(policy.Witnesses)) {
			t.Errorf("%q of %v", c, by)
		}
	})
}
