package chaos

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// unpack reads what writeInitramfs has written, as the format says and not as it does.
func unpack(t *testing.T, archive []byte) (files []guestFile) {
	t.Helper()
	field := func(n int) int {
		v, err := strconv.ParseUint(string(archive[6+8*n:14+8*n]), 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		return int(v)
	}
	aligned := func(n int) int { return (n + 3) / 4 * 4 }
	for {
		if !bytes.HasPrefix(archive, []byte("070701")) {
			t.Fatalf("%d bytes from the end there is no header", len(archive))
		}
		const mode, size, nameSize, headerBytes = 1, 6, 11, 110
		name := string(archive[headerBytes : headerBytes+field(nameSize)-1])
		if name == "TRAILER!!!" {
			return files
		}
		data := aligned(headerBytes + field(nameSize))
		f := guestFile{name: name, mode: uint32(field(mode)), data: archive[data : data+field(size)]}
		archive = archive[data+aligned(field(size)):]
		files = append(files, f)
	}
}

// Every length of a name and of data comes back, so that the padding is right.
func TestInitramfs(t *testing.T) {
	t.Parallel()
	var files []guestFile
	for n := range 9 {
		files = append(files, guestFile{name: "dir" + strings.Repeat("x", n), mode: guestDirectory},
			guestFile{name: "f" + strings.Repeat("y", n), mode: guestExecutable, data: make([]byte, n)})
	}
	var archive bytes.Buffer
	if err := writeInitramfs(&archive, files); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, archive.Bytes())
	if len(got) != len(files) {
		t.Fatalf("%d files, want %d", len(got), len(files))
	}
	for i, f := range files {
		if got[i].name != f.name || got[i].mode != f.mode || !bytes.Equal(got[i].data, f.data) {
			t.Errorf("file %d: %+v, want %+v", i, got[i], f)
		}
	}
	if err := writeInitramfs(fullDisk{}, files); !errors.Is(err, errFull) {
		t.Errorf("onto a full disk: %v", err)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Log("not read by another program: there is no busybox")
		return
	}
	list := exec.Command(busybox, "cpio", "-t")
	list.Stdin = &archive
	if out, err := list.Output(); err != nil || len(strings.Fields(string(out))) != len(files) {
		t.Errorf("busybox reads %q, %v", out, err)
	}
}

var errFull = errors.New("no space left")

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// Modules are taken in the order in which they are loaded, and those that the kernel has built in are not missed.
func TestModules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"fs/ext4.ko", "lib/crc16.ko", "drivers/virtio.ko", "lib/other.ko", "fs/jbd2.txt"} {
		path := filepath.Join(dir, "6.1", name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	files, err := modules(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		found = append(found, string(f.data))
	}
	if got := strings.Join(found, " "); got != "drivers/virtio.ko lib/crc16.ko fs/ext4.ko" {
		t.Error(got)
	}
	for i := 1; i < len(files); i++ {
		if files[i-1].name >= files[i].name { // which is how a shell expands /modules/*
			t.Errorf("%s is loaded before %s", files[i].name, files[i-1].name)
		}
	}
	if _, err := modules(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without modules: %v", err)
	}
}

// A kernel that cannot be had is told with the flag that gives another.
func TestKernels(t *testing.T) {
	t.Parallel()
	p := &power{kernel: t.TempDir(), o: new(options)}
	if _, err := p.boot(new(node), ""); err == nil || !strings.Contains(err.Error(), "vmlinuz") {
		t.Errorf("without a kernel: %v", err)
	}
	for _, arguments := range [][]string{
		{"-power", "-1"}, {"-nosync"}, {"-kernel", "/tmp"}, {"-power", "1", "-plain"},
	} {
		if err := Run(t.Context(), arguments, io.Discard); err == nil || !strings.Contains(err.Error(), "-power") {
			t.Errorf("%v: %v", arguments, err)
		}
	}
}
