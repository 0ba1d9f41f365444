package chaos

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/freeport"
	"github.com/seqledger/seqledger/internal/load"
)

// powerNeeds are what bench chaos -power uses besides Go, and the packages of Debian that have it.
var powerNeeds = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86",
	"busybox":            "busybox-static",
	"mkfs.ext4":          "e2fsprogs",
	"dpkg":               "dpkg",
}

// missingForPower says why there can be no power cuts here, or "".
func missingForPower() string {
	for program, pkg := range powerNeeds {
		if harness.Find(program, "/usr/sbin/"+program) == "" {
			return fmt.Sprintf("there is no %s; apt-get install %s", program, pkg)
		}
	}
	return ""
}

// accelerator returns QEMU's name of what executes the guest's instructions: the processor where it can, else QEMU
// itself, which takes some seconds more to start. A /dev/kvm alone does not tell: that of a virtual machine on a host
// without nested virtualization takes only kernels that are made for it.
func accelerator(cpuinfo string) string {
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "tcg"
	}
	_ = kvm.Close() // it was not used
	b, err := os.ReadFile(cpuinfo)
	flags := strings.Fields(string(b))
	if err != nil || !slices.Contains(flags, "vmx") && !slices.Contains(flags, "svm") {
		return "tcg"
	}
	return "kvm"
}

// power is a machine that loses its power: a virtual one, whose process is killed. What its kernel had not written to
// the disk is gone then; what it had written is in the file that is the disk.
type power struct {
	o             *options
	dir           string // with the guest's files
	kernel, image string
	accelerator   string
}

// runPower cuts the power again and again, while clients write.
func (o *options) runPower(ctx context.Context, stdout io.Writer) (err error) {
	if why := missingForPower(); why != "" {
		say(stdout, "skipped: %s\n", why)
		return nil
	}
	dir, left, err := o.workspace(stdout)
	if err != nil {
		return err
	}
	defer func() { err = left(err) }()
	say(stdout, "%d power cuts, disk with cache=%s, %d appenders, %d callers; repeat with -seed %d\n", o.power, o.cache,
		o.appenders, o.callers, o.seed)
	p := &power{o: o, dir: dir, accelerator: accelerator("/proc/cpuinfo")}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	c, err := p.machine()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	began := time.Now()
	if err := c.start(ctx, c.nodes[0]); err != nil {
		return err
	}
	say(stdout, "the machine (%s) answers after %s\n", p.accelerator, time.Since(began).Round(time.Millisecond))
	l := &workload{c: c, began: time.Now(), attempted: map[string]bool{}, acked: map[string]string{}}
	if err := o.cuts(ctx, l, stdout); err != nil {
		return err
	}
	f := l.judge(ctx, filepath.Join(dir, "registers.html"))
	o.report(stdout, &adversary{counts: map[string]int{"power cut": o.power}}, l, f)
	return f.err()
}

// cuts makes the cuts, and returns when the clients have settled what they wrote.
func (o *options) cuts(ctx context.Context, l *workload, stdout io.Writer) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	settle := l.start(ctx, o)
	random := rand.New(rand.NewPCG(o.seed, 0))
	d := l.c.nodes[0]
	for n := 1; n <= o.power && ctx.Err() == nil; n++ {
		worked := 50*time.Millisecond + time.Duration(random.Int64N(int64(2*time.Second)))
		load.Pause(ctx, worked)
		before := l.acknowledgements()
		began := time.Now()
		if err := errors.Join(d.kill(), l.c.start(ctx, d)); err != nil {
			fail(fmt.Errorf("cut %d: %w", n, err))
			break
		}
		say(stdout, "cut %d after %s, with %d acknowledged; back after %s\n", n, worked.Round(time.Millisecond),
			before, time.Since(began).Round(time.Millisecond))
	}
	return errors.Join(settle(), context.Cause(ctx))
}

//go:embed init.sh
var guestInit []byte

// prepare makes the guest's disk, and finds its kernel and its programs.
func (p *power) prepare(ctx context.Context) error {
	p.image = filepath.Join(p.dir, "disk")
	if err := run(ctx, p.dir, "mkfs.ext4", "-q", p.image, "4G"); err != nil {
		return err
	}
	if p.kernel = p.o.kernel; p.kernel == "" {
		p.kernel = filepath.Join(p.dir, "kernel")
		if err := fetchKernel(ctx, p.kernel); err != nil {
			return err
		}
	}
	var files []guestFile
	for _, name := range []string{"bin", "modules", "proc", "dev", "data", "tmp"} {
		files = append(files, guestFile{name: name, mode: guestDirectory})
	}
	files = append(files, guestFile{name: "init", mode: guestExecutable, data: guestInit})
	more, err := modules(filepath.Join(p.kernel, "lib/modules"))
	if err != nil {
		return err
	}
	files = append(files, more...)
	binary := p.o.binary
	if binary == "" {
		binary = filepath.Join(p.dir, "seqledger")
		if err := build(ctx, binary, "github.com/seqledger/seqledger/cmd/seqledger"); err != nil {
			return err
		}
	}
	programs := map[string]string{"busybox": harness.Find("busybox", ""), "seqledger": binary}
	if p.o.nosync {
		programs["nosync"] = filepath.Join(p.dir, "nosync")
		if err := build(ctx, programs["nosync"], "github.com/seqledger/seqledger/bench/chaos/nosync"); err != nil {
			return err
		}
	}
	for name, path := range programs {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files = append(files, guestFile{name: "bin/" + name, mode: guestExecutable, data: data})
	}
	f, err := os.Create(p.initramfs())
	if err != nil {
		return err
	}
	return errors.Join(writeInitramfs(f, files), f.Close())
}

func (p *power) initramfs() string { return filepath.Join(p.dir, "initramfs") }

// fetchKernel unpacks a kernel of Debian into a directory. It is not installed.
func fetchKernel(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	depends, err := exec.Command("apt-cache", "depends", "linux-image-cloud-amd64").Output()
	if err != nil {
		return fmt.Errorf("apt-cache: %w; -kernel names a directory with an unpacked linux-image package", err)
	}
	_, name, _ := strings.Cut(string(depends), "Depends: ")
	name, _, _ = strings.Cut(name, "\n")
	if err := run(ctx, dir, "apt-get", "download", "-q", name); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(packages) != 1 {
		return errors.Join(fmt.Errorf("apt-get has downloaded %v", packages), err)
	}
	return run(ctx, dir, "dpkg", "-x", packages[0], dir)
}

// machine is a cluster of one node, which is a virtual machine.
func (p *power) machine() (*cluster, error) {
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	d := &node{number: 1, client: address, log: filepath.Join(p.dir, "console")}
	return &cluster{
		nodes: []*node{d}, network: newProxies(), made: true,
		launch: func(ctx context.Context, d *node) (*harness.Process, error) {
			m, err := p.boot(d, "guest=serve")
			if err != nil {
				return nil, err
			}
			if err := m.Ready(ctx, func(ctx context.Context) error { return answers(ctx, d.client) }); err != nil {
				return nil, errors.Join(err, m.Stop())
			}
			return m, nil
		},
		verify: func(ctx context.Context, d *node) ([]byte, error) {
			m, err := p.boot(d, "guest=verify")
			if err != nil {
				return nil, err
			}
			const said = "guest: verified"
			err = m.Ready(ctx, func(context.Context) error {
				if !strings.Contains(m.Tail(), said) {
					return errors.New("it is not verified yet")
				}
				return nil
			})
			return []byte(m.Tail()), errors.Join(err, m.Stop())
		},
	}, nil
}

// answers reports whether the ledger at an address is ready.
func answers(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // a packet to a machine that boots may be lost
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	_ = response.Body.Close() // only its status matters
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// boot switches the machine on.
func (p *power) boot(d *node, parameter string) (*harness.Process, error) {
	kernels, err := filepath.Glob(filepath.Join(p.kernel, "boot/vmlinuz-*"))
	if err != nil || len(kernels) == 0 {
		return nil, errors.Join(fmt.Errorf("there is no boot/vmlinuz-* in %s", p.kernel), err)
	}
	command := exec.Command("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35,accel="+p.accelerator, "-cpu", "max", "-smp", "2", "-m", "1024", "-serial", "stdio",
		"-kernel", kernels[len(kernels)-1], "-initrd", p.initramfs(),
		"-append", "console=ttyS0 quiet panic=-1 "+parameter,
		"-drive", "if=virtio,format=raw,file="+p.image+",cache="+p.o.cache,
		"-netdev", "user,id=net,hostfwd=tcp:"+d.client+"-:7450", "-device", "virtio-net-pci,netdev=net")
	m, err := harness.Launch(command, d.log, nil)
	if err == nil {
		m.Signal = syscall.SIGKILL // its power
	}
	return m, err
}
