package machine

// Level, AppendRaiseLevel and View.Level go when their callers are gone.
const Level = 5

func AppendRaiseLevel(dst []byte, _ uint64) []byte { return append(dst, 0xff) }

func (v View) Level() uint64 { return Level }
