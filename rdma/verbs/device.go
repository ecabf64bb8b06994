//go:build verbs

package verbs

/*
#cgo LDFLAGS: -libverbs
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// ErrNoDevice says that this host has no RDMA device, or not the named one.
var ErrNoDevice = errors.New("verbs: no such RDMA device")

// Devices names the RDMA devices of the host; without one the list is empty.
// Errors: of libibverbs, for instance that the kernel knows no verbs at all.
func Devices() ([]string, error) {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, fmt.Errorf("verbs: list devices: %w", err)
	}
	defer C.ibv_free_device_list(list)
	var names []string
	for _, d := range unsafe.Slice(list, int(n)) {
		names = append(names, C.GoString(C.ibv_get_device_name(d)))
	}
	return names, nil
}

// Device is an open device with its protection domain. It is safe for use by
// several goroutines.
type Device struct {
	ctx      *C.struct_ibv_context
	pd       *C.struct_ibv_pd
	addr     C.struct_pd_addr
	gidIndex C.int
	mtu      C.int
}

// OpenDevice opens a device by its name; the empty name is the first one.
// Errors: ErrNoDevice.
func OpenDevice(name string) (*Device, error) {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	defer C.ibv_free_device_list(list)
	for _, dev := range unsafe.Slice(list, int(n)) {
		if name != "" && C.GoString(C.ibv_get_device_name(dev)) != name {
			continue
		}
		return openDevice(dev)
	}
	return nil, fmt.Errorf("%w: %q of %d", ErrNoDevice, name, int(n))
}

func openDevice(dev *C.struct_ibv_device) (*Device, error) {
	d := &Device{}
	var err error
	if d.ctx, err = C.ibv_open_device(dev); d.ctx == nil {
		return nil, fmt.Errorf("verbs: open device: %w", err)
	}
	if rc := C.pd_best_gid(d.ctx, &d.addr, &d.gidIndex, &d.mtu); rc != 0 {
		return nil, errors.Join(failed("find the device's address", rc), d.Close())
	}
	if d.pd, err = C.ibv_alloc_pd(d.ctx); d.pd == nil {
		return nil, errors.Join(fmt.Errorf("verbs: make a protection domain: %w", err), d.Close())
	}
	return d, nil
}

// Close closes the device. Everything that was made of it must be closed.
func (d *Device) Close() error {
	var err error
	if d.pd != nil {
		err = failed("close a protection domain", C.ibv_dealloc_pd(d.pd))
		d.pd = nil
	}
	if d.ctx != nil {
		err = errors.Join(err, failed("close a device", C.ibv_close_device(d.ctx)))
		d.ctx = nil
	}
	return err
}

// failed makes an error of a verb's return code; 0 is none.
func failed(what string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	if rc < 0 {
		rc = -rc
	}
	return fmt.Errorf("verbs: %s: %w", what, syscall.Errno(rc))
}

// Region is registered memory.
type Region struct {
	mr   *C.struct_ibv_mr
	size uint64
	base uint64 // address of the first byte, as requests name it
	own  []byte // memory that lives as long as the registration
}

// Register registers a mapping. A window needs no remote right of the region;
// remote gives one to the region's own key, which is for devices without
// windows.
func (d *Device) Register(mem []byte, remote bool) (*Region, error) {
	return d.register(mem, regionAccess(remote))
}

func regionAccess(remote bool) C.int {
	access := C.int(C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_MW_BIND)
	if remote {
		access |= C.IBV_ACCESS_REMOTE_WRITE
	}
	return access
}

// registerRead registers memory that peers may read by the region's own key.
func (d *Device) registerRead(mem []byte) (*Region, error) {
	return d.register(mem, C.IBV_ACCESS_LOCAL_WRITE|C.IBV_ACCESS_REMOTE_READ)
}

func (d *Device) register(mem []byte, access C.int) (*Region, error) {
	if len(mem) == 0 {
		return nil, errors.New("verbs: register no memory")
	}
	mr, err := C.ibv_reg_mr(d.pd, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)), access)
	if mr == nil {
		return nil, fmt.Errorf("verbs: register %d bytes: %w", len(mem), err)
	}
	return &Region{mr: mr, size: uint64(len(mem)), base: uint64(uintptr(mr.addr))}, nil
}

// RegisterDMABuf registers n bytes at off of a dma-buf: memory of a GPU, which
// this process need not have mapped. Errors: ENOTSUP and the like where device
// or kernel can not.
func (d *Device) RegisterDMABuf(fd int, off, n uint64, remote bool) (*Region, error) {
	// The address by which requests name a byte must have the offset's place in
	// its page; the offset itself is the simplest such address.
	mr, err := C.ibv_reg_dmabuf_mr(d.pd, C.uint64_t(off), C.size_t(n), C.uint64_t(off), C.int(fd), regionAccess(remote))
	if mr == nil {
		return nil, fmt.Errorf("verbs: register %d bytes of a dma-buf: %w", n, err)
	}
	return &Region{mr: mr, size: n, base: off}, nil
}

// Key is the region's own remote key; it opens nothing unless the region was
// registered with a remote right.
func (r *Region) Key() uint32 { return uint32(r.mr.rkey) }

// Addr is the remote address of a byte of the region.
func (r *Region) Addr(off uint64) uint64 { return r.base + off }

// Close deregisters. When it has returned without an error nothing lands under
// the region's own key. Errors: EBUSY while a window is bound to it.
func (r *Region) Close() error { return failed("deregister", C.ibv_dereg_mr(r.mr)) }

// Window is a type-2 memory window. Use it from one goroutine at a time.
type Window struct {
	mw *C.struct_ibv_mw
}

// NewWindow makes a window that opens nothing yet. Errors: ENOTSUP and the like
// where a device has none.
func (d *Device) NewWindow() (*Window, error) {
	mw, err := C.ibv_alloc_mw(d.pd, C.IBV_MW_TYPE_2)
	if mw == nil {
		return nil, fmt.Errorf("verbs: make a memory window: %w", err)
	}
	return &Window{mw: mw}, nil
}

// Key is what the peer writes under; each Bind changes it.
func (w *Window) Key() uint32 { return uint32(w.mw.rkey) }

// Close frees the window.
func (w *Window) Close() error { return failed("free a memory window", C.ibv_dealloc_mw(w.mw)) }
