// The calls of `nvidia-mig-parted apply|assert|clear` on one GPU, in its order (pkg/mig/{mode,config} and
// cmd/nvidia-mig-parted at bd7160f4), for want of the program: its module is not served. Instances are made without a
// placement, and where an order of the wish list fails, everything is cleared and the next permutation tried.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// wish is one GPU's part of a configuration file.
type wish struct {
	Enabled bool           `json:"mig-enabled"`
	Devices map[string]int `json:"mig-devices"`
}

const (
	applied       = 0
	failed        = 1
	resetRequired = 3 // the program runs `nvidia-smi -r` here; the caller of this one resets and calls again
)

func migParted(command string, raw string) int {
	var want wish
	ok(json.Unmarshal([]byte(raw), &want), "configuration")
	must(api.Init(), "init")
	defer api.Shutdown()
	gpu, ret := api.DeviceGetHandleByIndex(0)
	must(ret, "GPU 0")
	switch command {
	case "assert":
		return exitCode(modeIs(gpu, want.Enabled) && asserted(gpu, want))
	case "clear":
		clearIfOn(gpu)
		return applied
	default:
		return apply(gpu, want)
	}
}

func exitCode(holds bool) int {
	if holds {
		return applied
	}
	return failed
}

func modeIs(gpu nvml.Device, enabled bool) bool {
	current, _, ret := gpu.GetMigMode()
	must(ret, "MIG mode")
	return (current == nvml.DEVICE_MIG_ENABLE) == enabled
}

func clearIfOn(gpu nvml.Device) {
	if modeIs(gpu, true) {
		clear(gpu)
	}
}

func apply(gpu nvml.Device, want wish) int {
	if !modeIs(gpu, want.Enabled) {
		clearIfOn(gpu)
		if setMode(gpu, want.Enabled) {
			return resetRequired
		}
	}
	if !want.Enabled || asserted(gpu, want) {
		return applied
	}
	return exitCode(permuted(gpu, spread(want.Devices)))
}

// setMode ignores the activation status, as the program does, and tells whether the mode is still pending.
func setMode(gpu nvml.Device, enabled bool) bool {
	mode := nvml.DEVICE_MIG_DISABLE
	if enabled {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	_, ret := gpu.SetMigMode(mode)
	must(ret, "set MIG mode")
	current, pending, ret := gpu.GetMigMode()
	must(ret, "MIG mode")
	return current != pending
}

// asserted: what lives on the GPU is the wish list, as a multiset of names.
func asserted(gpu nvml.Device, want wish) bool {
	if !want.Enabled {
		return true
	}
	found := map[string]int{}
	for _, profile := range known(gpu) {
		for _, gi := range instancesOf(gpu, profile.GetInfo().GIProfileID) {
			found[profile.String()] += len(computeInstances(gi, profile.GetInfo().CIProfileID))
		}
	}
	for name, count := range found {
		if count != want.Devices[name] {
			return false
		}
	}
	for name, count := range want.Devices {
		if count != found[name] {
			return false
		}
	}
	return true
}

// known are the profiles that fill a GPU instance, each name once: go-nvlib lists a name again for every compute
// profile constant of as many slices (7_SLICE_NVL beside 7_SLICE), of which no GPU has more than the first.
func known(gpu nvml.Device) []device.MigProfile {
	d, err := device.New(api).NewDevice(gpu)
	ok(err, "device")
	all, err := d.GetMigProfiles()
	ok(err, "MIG profiles")
	whole := []device.MigProfile{}
	for _, profile := range all {
		info := profile.GetInfo()
		if info.C == info.G && !slices.ContainsFunc(whole, named(profile.String())) {
			whole = append(whole, profile)
		}
	}
	return whole
}

func named(name string) func(device.MigProfile) bool {
	return func(profile device.MigProfile) bool { return profile.String() == name }
}

func instancesOf(gpu nvml.Device, constant int) []nvml.GpuInstance {
	info, ret := gpu.GetGpuInstanceProfileInfo(constant)
	must(ret, "profile info")
	instances, ret := gpu.GetGpuInstances(&info)
	must(ret, "GPU instances")
	return instances
}

func computeInstances(gi nvml.GpuInstance, constant int) []nvml.ComputeInstance {
	info, ret := gi.GetComputeInstanceProfileInfo(constant, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	must(ret, "compute profile info")
	instances, ret := gi.GetComputeInstances(&info)
	must(ret, "compute instances")
	return instances
}

func spread(devices map[string]int) []string {
	names := []string{}
	for name, count := range devices {
		for range count {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// permuted makes the wish list in the first order that works; every order that fails is cleared first.
func permuted(gpu nvml.Device, names []string) bool {
	byName := map[string]device.MigProfile{}
	for _, profile := range known(gpu) {
		byName[profile.String()] = profile
	}
	for order := range permutations(names) {
		clear(gpu)
		if made(gpu, order, byName) {
			return true
		}
		clear(gpu)
	}
	return false
}

func made(gpu nvml.Device, order []string, byName map[string]device.MigProfile) bool {
	for _, name := range order {
		profile, listed := byName[name]
		if !listed || !madeOne(gpu, profile.GetInfo()) {
			return false
		}
	}
	return true
}

func madeOne(gpu nvml.Device, wanted device.MigProfileInfo) bool {
	info, ret := gpu.GetGpuInstanceProfileInfo(wanted.GIProfileID)
	must(ret, "profile info")
	gi, ret := gpu.CreateGpuInstance(&info)
	if ret != nvml.SUCCESS {
		return false
	}
	ciInfo, ret := gi.GetComputeInstanceProfileInfo(wanted.CIProfileID, wanted.CIEngProfileID)
	must(ret, "compute profile info")
	_, ret = gi.CreateComputeInstance(&ciInfo)
	return ret == nvml.SUCCESS
}

// permutations in lexical order, each distinct one once.
func permutations(sorted []string) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		order := slices.Clone(sorted)
		for yield(order) && nextOrder(order) {
		}
	}
}

func nextOrder(order []string) bool {
	at := len(order) - 2
	for at >= 0 && order[at] >= order[at+1] {
		at--
	}
	if at < 0 {
		return false
	}
	swap := len(order) - 1
	for order[swap] <= order[at] {
		swap--
	}
	order[at], order[swap] = order[swap], order[at]
	slices.Reverse(order[at+1:])
	return true
}

func usage() {
	fmt.Fprintln(os.Stderr, "nvlib-probe PCI_DEVICES | nvlib-probe mig-parted apply|assert|clear CONFIGURATION")
	os.Exit(2)
}
