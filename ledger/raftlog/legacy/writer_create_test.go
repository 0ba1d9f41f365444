package legacy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// create makes a log whose first entry names the members of the cluster. It is built beside its
// final place and renamed, so that a crash leaves either no log or a whole one.
func create(o *Options, conf *raft.Config, transport raft.Transport, members ...raft.Server) error {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("legacy: %w", err)
	}
	for _, name := range []string{walDir, snapshotDir} {
		if _, err := os.Stat(filepath.Join(o.Dir, name)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("legacy: cannot create a log in %s: %s is there already (%w)", o.Dir, name, os.ErrExist)
		}
	}
	tmp := filepath.Join(o.Dir, newWALDir)
	// Nothing in it was ever acknowledged: it had not got its name yet.
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("legacy: %w", err)
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return fmt.Errorf("legacy: %w", err)
	}
	if err := fill(o, tmp, conf, transport, members); err != nil {
		return fmt.Errorf("legacy: create a log in %s: %w", o.Dir, err)
	}
	if err := os.Rename(tmp, filepath.Join(o.Dir, walDir)); err != nil {
		return fmt.Errorf("legacy: %w", err)
	}
	return errors.Join(o.sync(o.Dir), o.sync(filepath.Dir(o.Dir)))
}

// fill writes the first entry, the membership, and the identity into dir.
func fill(o *Options, dir string, conf *raft.Config, transport raft.Transport, members []raft.Server) (err error) {
	store, err := openWAL(o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	first := raft.Configuration{Servers: members}
	if err := raft.BootstrapCluster(conf, store, store, raft.NewInmemSnapshotStore(), transport, first); err != nil {
		return err
	}
	return store.Set(keyIdentity, o.Identity)
}
