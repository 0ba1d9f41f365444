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

// Key is a public or a private key: a verifier, and a signer, of package note.
type Key struct {
	name    string
	kind    Kind
	public  ed25519.PublicKey
	private ed25519.PrivateKey // nil for a public key
}

// NewKey makes a private key. The name of a log's key is the origin of its checkpoints.
func NewKey(kind Kind, name string) (*Key, error) {
	public, key, err := ed25519.GenerateKey(nil)
	return &Key{name, kind, public, key}, errors.Join(err, checkName(name))
}

// ParseKey reads a public key, a vkey of signed-note, or a private key as package note encodes it.
func ParseKey(text string) (*Key, error) {
	name, isPrivate := strings.CutPrefix(text, privatePrefix)
	name, encoded, _ := strings.Cut(name, "+")
	_, encoded, _ = strings.Cut(encoded, "+")
	b, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(b) == 0 {
		return nil, errors.New("must be a name, a key id and a key in base64, with + between them")
	}
	k := &Key{name: name, kind: Kind(b[0]), public: b[1:]}
	if k.kind != LogKey && k.kind != WitnessKey || len(k.public) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%d bytes of the signature type %#02x: must be an Ed25519 key", len(b)-1, b[0])
	}
	again := k.String()
	if isPrivate {
		k.private = ed25519.NewKeyFromSeed(b[1:])
		k = k.As(name)
		again = k.secret()
	}
	if again != text {
		return nil, errors.New("the key id does not fit the name and the key")
	}
	return k, checkName(name)
}

// checkName refuses what package note refuses when it signs.
func checkName(name string) error {
	bad := func(r rune) bool { return r == '+' || unicode.IsSpace(r) || unicode.IsControl(r) }
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("the name %q must be text without spaces and +, such as example.com/log", name)
	}
	return nil
}

// ReadKey reads the file of a private key that [Key.Create] has made.
func ReadKey(path string, kind Kind) (*Key, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := ParseKey(strings.TrimSuffix(string(content), "\n"))
	switch {
	case err != nil:
	case k.private == nil:
		err = errors.New("is a public key")
	case k.kind != kind:
		err = fmt.Errorf("the signature type must be %#02x and is %#02x: logs and witnesses have different keys",
			byte(kind), byte(k.kind))
	default:
		return k, nil
	}
	return nil, fmt.Errorf("%s: %w", path, err)
}

// Create writes a private key to a new file that only its owner can read.
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

// As returns the same private key with another name: the origin of a log that is restored is another one.
func (k *Key) As(name string) *Key {
	return &Key{name, k.kind, ed25519.PublicKey(k.private[ed25519.SeedSize:]), k.private}
}

// String returns the public key.
func (k *Key) String() string { return k.encode(k.public) }

func (k *Key) secret() string { return privatePrefix + k.encode(k.private.Seed()) }

func (k *Key) encode(key []byte) string {
	encoded := base64.StdEncoding.EncodeToString(append([]byte{byte(k.kind)}, key...))
	return fmt.Sprintf("%s+%08x+%s", k.name, k.KeyHash(), encoded)
}

// Name implements note.Verifier and note.Signer.
func (k *Key) Name() string { return k.name }

// KeyHash implements note.Verifier and note.Signer.
func (k *Key) KeyHash() uint32 {
	sum := sha256.Sum256(append(append([]byte(k.name+"\n"), byte(k.kind)), k.public...))
	return binary.BigEndian.Uint32(sum[:])
}

// Verify implements note.Verifier.
func (k *Key) Verify(text, signature []byte) bool {
	if k.kind == LogKey {
		return ed25519.Verify(k.public, text, signature)
	}
	if len(signature) != timeBytes+ed25519.SignatureSize {
		return false
	}
	at := binary.BigEndian.Uint64(signature)
	return at > 0 && at <= math.MaxInt64 && ed25519.Verify(k.public, timed(at, text), signature[timeBytes:])
}

// Sign implements note.Signer.
func (k *Key) Sign(text []byte) ([]byte, error) {
	if k.kind == LogKey {
		return ed25519.Sign(k.private, text), nil
	}
	at := uint64(max(time.Now().Unix(), 1))
	return append(binary.BigEndian.AppendUint64(nil, at), ed25519.Sign(k.private, timed(at, text))...), nil
}

// timed returns what a cosignature signs.
func timed(at uint64, text []byte) []byte {
	return append(fmt.Appendf(nil, "cosignature/v1\ntime %d\n", at), text...)
}
