package chaos

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A filled disk takes no byte more until the file is gone. A run that has found nothing leaves no disk behind, and one
// that has found something leaves it and says how to end it.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "small")
	if why := mountSmall(t.Context(), path, 8<<20); why != "" {
		t.Skip(why)
	}
	filler, other := filepath.Join(path, "filler"), filepath.Join(path, "other")
	if err := fill(filler); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(other, []byte("x"), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a byte more: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(other, []byte("x"), 0o600); err != nil {
		t.Errorf("with room again: %v", err)
	}
	failed := errors.New("something was found")
	var said bytes.Buffer
	for _, o := range []struct {
		options

		err error
	}{{options{keep: true}, nil}, {options{}, failed}} {
		said.Reset()
		err := o.unmount(o.err, path, &said)
		if !errors.Is(err, o.err) || !strings.Contains(said.String(), "umount "+path) {
			t.Errorf("after %v: %v, %q", o.err, err, said.String())
		}
		if _, err := os.Stat(other); err != nil {
			t.Errorf("after %v: %v", o.err, err)
		}
	}
	if err := new(options).unmount(nil, path, &said); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the disk is still there: %v", err)
	}
	if err := new(options).unmount(failed, "", &said); !errors.Is(err, failed) {
		t.Errorf("without a disk: %v", err)
	}
}

// A disk can be full only where there is a small one, and everything else can happen anywhere.
func TestFaultsThatThereCanBe(t *testing.T) {
	t.Parallel()
	without, with := &adversary{c: &cluster{}}, &adversary{c: &cluster{small: "/small"}}
	if got, want := len(with.faults()), len(without.faults())+1; got != want {
		t.Errorf("%d faults with a small disk, want %d", got, want)
	}
	if last := with.faults()[len(faults)]; last.name != "a disk is full" || last.weight == 0 {
		t.Errorf("the last one is %q with weight %d", last.name, last.weight)
	}
	for _, f := range without.faults() {
		if f.weight < 1 || f.do == nil || f.name == "a disk is full" {
			t.Errorf("%q with weight %d cannot be drawn, or should not", f.name, f.weight)
		}
	}
}

// What cannot be filled, or removed, is an error and no full disk.
func TestFillFails(t *testing.T) {
	t.Parallel()
	if err := fill(filepath.Join(t.TempDir(), "absent", "filler")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("fill in a directory that is not there: %v", err)
	}
	path := filepath.Join(t.TempDir(), "not mounted")
	err := new(options).unmount(nil, path, new(bytes.Buffer))
	if err == nil || !strings.Contains(err.Error(), "umount") {
		t.Errorf("unmount of what is no mount: %v", err)
	}
}
