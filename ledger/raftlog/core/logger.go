package core

import "fmt"

// logger drops the library's log messages. It panics on fatal ones rather than exit, because Node.do turns a panic
// into the failure of the node.
type logger struct{}

func (logger) Debug(...any)            {}
func (logger) Debugf(string, ...any)   {}
func (logger) Info(...any)             {}
func (logger) Infof(string, ...any)    {}
func (logger) Warning(...any)          {}
func (logger) Warningf(string, ...any) {}
func (logger) Error(...any)            {}
func (logger) Errorf(string, ...any)   {}

func (logger) Fatal(v ...any)            { panic(fmt.Sprint(v...)) }
func (logger) Fatalf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
func (logger) Panic(v ...any)            { panic(fmt.Sprint(v...)) }
func (logger) Panicf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
