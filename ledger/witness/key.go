// Package witness has what a transparency log, its witnesses and those who verify have in common: keys, checkpoints,
// cosignatures and policies. [Witness] and [Gatherer] are the two sides of the protocol between witness and log.
//
// It follows signed-note@v1.0.0, tlog-checkpoint@v1.0.0 and tlog-cosignature@v1.0.1 of c2sp.org, with Ed25519.
// tlog-witness, whose requests for a checkpoint are newer than its v1.0.0, was read at commit 95978ca8038c of
// github.com/C2SP/C2SP, and tlog-policy, which has no version, at 1896a5aea555.
package witness

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/internal/private"
)

// Kind tells what a key signs. It is the signature type of signed-note.
type Kind byte

const (
	// LogKey signs checkpoints.
	LogKey Kind = 1
	// WitnessKey cosigns them: it signs the time, too.
	WitnessKey Kind = 4
)

const (
	privatePrefix = "PRIVATE+KEY+" // of package note's encoding of a private key
	timeBytes     = 8
)

// PublicKey verifies the signatures of a key. It is a [note.Verifier].
type PublicKey struct {
	name string
	kind Kind
	key  ed25519.PublicKey
}

var _ note.Verifier = (*PublicKey)(nil)

// ParsePublicKey reads what [PublicKey.String] returns.
func ParsePublicKey(vkey string) (*PublicKey, error) {
	name, rest, _ := strings.Cut(vkey, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	kind, key, err := decodeKey(name, encoded)
	if err != nil {
		return nil, err
	}
	if p := (&PublicKey{name, kind, key}); p.String() == vkey {
		return p, nil
	}
	return nil, errors.New("the key id does not fit the name and the key")
}

// decodeKey reads the last part of a public or private key.
func decodeKey(name, encoded string) (Kind, []byte, error) {
	b, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case err != nil || len(b) == 0:
		return 0, nil, errors.New("must be a name, a key id and a key in base64, with + between them")
	case Kind(b[0]) != LogKey && Kind(b[0]) != WitnessKey || len(b) != 1+ed25519.PublicKeySize:
		return 0, nil, fmt.Errorf("%d bytes of the signature type %#02x: must be an Ed25519 key", len(b)-1, b[0])
	}
	return Kind(b[0]), b[1:], checkName(name)
}

// checkName refuses what package note refuses when it signs.
func checkName(name string) error {
	bad := func(r rune) bool { return r == '+' || unicode.IsSpace(r) || unicode.IsControl(r) }
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("the name %q must be text without spaces and +, such as example.com/log", name)
	}
	return nil
}

// Kind returns what the key is for.
func (p *PublicKey) Kind() Kind { return p.kind }

// Name implements [note.Verifier].
func (p *PublicKey) Name() string { return p.name }

// KeyHash implements [note.Verifier].
func (p *PublicKey) KeyHash() uint32 {
	sum := sha256.Sum256(append(append([]byte(p.name+"\n"), byte(p.kind)), p.key...))
	return binary.BigEndian.Uint32(sum[:])
}

// String returns the key as policies have it, a vkey.
func (p *PublicKey) String() string { return p.encode(p.key) }

func (p *PublicKey) encode(key []byte) string {
	encoded := base64.StdEncoding.EncodeToString(append([]byte{byte(p.kind)}, key...))
	return fmt.Sprintf("%s+%08x+%s", p.name, p.KeyHash(), encoded)
}

// Verify implements [note.Verifier].
func (p *PublicKey) Verify(text, signature []byte) bool {
	if p.kind == LogKey {
		return ed25519.Verify(p.key, text, signature)
	}
	if len(signature) != timeBytes+ed25519.SignatureSize {
		return false
	}
	at := binary.BigEndian.Uint64(signature)
	return at > 0 && at <= math.MaxInt64 && ed25519.Verify(p.key, timed(int64(at), text), signature[timeBytes:])
}

// timed returns what a cosignature signs.
func timed(at int64, text []byte) []byte {
	return append(fmt.Appendf(nil, "cosignature/v1\ntime %d\n", at), text...)
}

// Key is a private key, with its public one. It is a [note.Signer].
type Key struct {
	PublicKey

	private ed25519.PrivateKey
}

var _ note.Signer = (*Key)(nil)

// NewKey makes a key. The name of a log's key is the origin of its checkpoints.
func NewKey(kind Kind, name string) (*Key, error) {
	public, key, err := ed25519.GenerateKey(nil)
	return &Key{PublicKey{name, kind, public}, key}, errors.Join(err, checkName(name))
}

// ParseKey reads a private key as package note encodes it.
func ParseKey(skey string) (*Key, error) {
	rest, is := strings.CutPrefix(skey, privatePrefix)
	name, rest, _ := strings.Cut(rest, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	kind, seed, err := decodeKey(name, encoded)
	if err != nil || !is {
		return nil, errors.New("is no private key") // nothing of it may get into a log
	}
	k := (&Key{PublicKey{name, kind, nil}, ed25519.NewKeyFromSeed(seed)}).As(name)
	if k.secret() != skey {
		return nil, errors.New("is no private key: its key id does not fit")
	}
	return k, nil
}

// ReadKey reads the file of a key that [Key.Create] has made.
func ReadKey(path string, kind Kind) (*Key, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := ParseKey(strings.TrimSuffix(string(content), "\n"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if k.kind != kind {
		return nil, fmt.Errorf("%s: is the key of a log where that of a witness is due, or the other way round", path)
	}
	return k, nil
}

// Create writes the key to a new file that only its owner can read.
func (k *Key) Create(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, private.File)
	if err != nil {
		return err
	}
	_, err = f.WriteString(k.secret() + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return durable.SyncDir(filepath.Dir(path))
}

// secret returns the key as package note encodes it.
func (k *Key) secret() string { return privatePrefix + k.encode(k.private.Seed()) }

// As returns the same key with another name: a log that is restored has another origin.
func (k *Key) As(name string) *Key {
	public, _ := k.private.Public().(ed25519.PublicKey) // it is one
	return &Key{PublicKey{name, k.kind, public}, k.private}
}

// Sign implements [note.Signer].
func (k *Key) Sign(text []byte) ([]byte, error) {
	if k.kind == LogKey {
		return ed25519.Sign(k.private, text), nil
	}
	at := time.Now().Unix()
	if at <= 0 {
		return nil, errors.New("the clock is before 1970")
	}
	return append(binary.BigEndian.AppendUint64(nil, uint64(at)), ed25519.Sign(k.private, timed(at, text))...), nil
}
