package sim

func (w *world) audit(dir string) {}
