// nvlib-probe runs the code that NVIDIA's Kubernetes components share (go-nvml and go-nvlib) on whatever
// libnvidia-ml.so.1 the loader finds, and prints what it saw as one JSON object.
//
// The sequences are those of the DRA driver (prepare, walk, unprepare) and of mig-parted (migparted.go): these programs
// cannot be fetched as Go modules, the libraries can.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvlib/pkg/nvpci"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// One library object: go-nvlib looks symbols up in the one that it is given, which must be the loaded one.
var api = nvml.New()

type seen struct {
	Rounds      int                 `json:"rounds"`
	Profiles    map[string][]string `json:"profiles"` // GPU UUID to names
	PreparedAs  string              `json:"prepared_as"`
	MigUUID     string              `json:"mig_uuid"`
	FoundByUUID string              `json:"found_by_uuid"`
	Walked      []string            `json:"walked"`
	AfterClear  int                 `json:"after_clear"`
	Placed      []uint32            `json:"placed"`
	V2Name      string              `json:"v2_name"`
	V3Name      string              `json:"v3_name"`
	PCI         []string            `json:"pci"`
}

func must(ret nvml.Return, doing string) {
	if ret != nvml.SUCCESS {
		fmt.Fprintf(os.Stderr, "%s: %s\n", doing, nvml.ErrorString(ret))
		os.Exit(1)
	}
}

func ok(err error, doing string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", doing, err)
		os.Exit(1)
	}
}

// rounds loads and unloads NVML as nvidia-ctk does.
func rounds(n int) int {
	for i := 0; i < n; i++ {
		must(api.Init(), "init")
		must(api.Shutdown(), "shutdown")
	}
	return n
}

func profiles(lib device.Interface) map[string][]string {
	found := map[string][]string{}
	devices, err := lib.GetDevices()
	ok(err, "devices")
	for _, d := range devices {
		uuid, ret := d.GetUUID()
		must(ret, "uuid")
		all, err := d.GetMigProfiles()
		ok(err, "profiles of "+uuid)
		for _, p := range all {
			found[uuid] = append(found[uuid], p.String())
		}
	}
	return found
}

// prepare makes what the DRA driver makes for a claim: a GPU instance where it says, filled by one compute instance.
func prepare(gpu nvml.Device, constant int, start uint32) (nvml.GpuInstance, nvml.ComputeInstance, string) {
	info, ret := gpu.GetGpuInstanceProfileInfo(constant)
	must(ret, "profile info")
	placements, ret := gpu.GetGpuInstancePossiblePlacements(&info)
	must(ret, "placements")
	for _, placement := range placements {
		if placement.Start != start {
			continue
		}
		gi, ret := gpu.CreateGpuInstanceWithPlacement(&info, &placement)
		must(ret, "create GPU instance")
		ciInfo, ret := gi.GetComputeInstanceProfileInfo(constant, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		must(ret, "compute profile info")
		ci, ret := gi.CreateComputeInstance(&ciInfo)
		must(ret, "create compute instance")
		return gi, ci, uuidOf(gpu, gi, ci)
	}
	ok(fmt.Errorf("no placement at %d", start), "prepare")
	return nil, nil, ""
}

func uuidOf(gpu nvml.Device, gi nvml.GpuInstance, ci nvml.ComputeInstance) string {
	giInfo, ret := gi.GetInfo()
	must(ret, "GPU instance info")
	ciInfo, ret := ci.GetInfo()
	must(ret, "compute instance info")
	count, ret := gpu.GetMaxMigDeviceCount()
	must(ret, "MIG device count")
	for i := 0; i < count; i++ {
		mig, ret := gpu.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		gpuInstance, _ := mig.GetGpuInstanceId()
		computeInstance, _ := mig.GetComputeInstanceId()
		if gpuInstance == int(giInfo.Id) && computeInstance == int(ciInfo.Id) {
			uuid, ret := mig.GetUUID()
			must(ret, "MIG UUID")
			return uuid
		}
	}
	return ""
}

func unprepare(gpu nvml.Device, gi nvml.GpuInstance, ci nvml.ComputeInstance) {
	giInfo, ret := gi.GetInfo()
	must(ret, "GPU instance info")
	ciInfo, ret := ci.GetInfo()
	must(ret, "compute instance info")
	again, ret := gpu.GetGpuInstanceById(int(giInfo.Id))
	must(ret, "GPU instance by id")
	inner, ret := again.GetComputeInstanceById(int(ciInfo.Id))
	must(ret, "compute instance by id")
	must(inner.Destroy(), "destroy compute instance")
	must(again.Destroy(), "destroy GPU instance")
}

func profileOf(lib device.Interface, uuid string) string {
	mig, err := lib.NewMigDeviceByUUID(uuid)
	ok(err, "MIG device by UUID")
	profile, err := mig.GetProfile()
	ok(err, "profile of MIG device")
	return profile.String()
}

func walk(lib device.Interface) []string {
	names := []string{}
	migs, err := lib.GetMigDevices()
	ok(err, "MIG devices")
	for _, mig := range migs {
		profile, err := mig.GetProfile()
		ok(err, "profile of MIG device")
		names = append(names, profile.String())
	}
	return names
}

// clear destroys everything on the GPU, profile by profile, as mig-parted does before it applies a configuration.
func clear(gpu nvml.Device) {
	for constant := 0; constant < nvml.GPU_INSTANCE_PROFILE_COUNT; constant++ {
		info, ret := gpu.GetGpuInstanceProfileInfo(constant)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		must(ret, "profile info")
		instances, ret := gpu.GetGpuInstances(&info)
		must(ret, "GPU instances")
		for _, gi := range instances {
			clearInside(gi)
			must(gi.Destroy(), "destroy GPU instance")
		}
	}
}

func clearInside(gi nvml.GpuInstance) {
	for constant := 0; constant < nvml.COMPUTE_INSTANCE_PROFILE_COUNT; constant++ {
		info, ret := gi.GetComputeInstanceProfileInfo(constant, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		must(ret, "compute profile info")
		instances, ret := gi.GetComputeInstances(&info)
		must(ret, "compute instances")
		for _, ci := range instances {
			must(ci.Destroy(), "destroy compute instance")
		}
	}
}

// placed lets the driver choose: 3g, 1g, 2g, 1g.
func placed(gpu nvml.Device) []uint32 {
	starts := []uint32{}
	for _, constant := range []int{
		nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE,
		nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE,
	} {
		info, ret := gpu.GetGpuInstanceProfileInfo(constant)
		must(ret, "profile info")
		gi, ret := gpu.CreateGpuInstance(&info)
		must(ret, "create GPU instance")
		made, ret := gi.GetInfo()
		must(ret, "GPU instance info")
		starts = append(starts, made.Placement.Start)
	}
	return starts
}

func name(raw [96]int8) string {
	text := ""
	for _, c := range raw {
		if c == 0 {
			break
		}
		text += string(rune(byte(c)))
	}
	return text
}

func main() {
	switch {
	case len(os.Args) == 4 && os.Args[1] == "mig-parted":
		os.Exit(migParted(os.Args[2], os.Args[3]))
	case len(os.Args) == 2:
		components(os.Args[1])
	default:
		usage()
	}
}

func components(pciDevices string) {
	out := seen{Rounds: rounds(3)}
	must(api.Init(), "init")
	lib := device.New(api)
	out.Profiles = profiles(lib)
	gpu, ret := api.DeviceGetHandleByIndex(0)
	must(ret, "GPU 0")

	gi, ci, uuid := prepare(gpu, nvml.GPU_INSTANCE_PROFILE_3_SLICE, 4)
	out.MigUUID, out.PreparedAs, out.Walked = uuid, profileOf(lib, uuid), walk(lib)
	byUUID, ret := api.DeviceGetHandleByUUID(uuid)
	must(ret, "handle by UUID")
	out.FoundByUUID, ret = byUUID.GetUUID()
	must(ret, "UUID")
	unprepare(gpu, gi, ci)

	prepare(gpu, nvml.GPU_INSTANCE_PROFILE_2_SLICE, 0)
	prepare(gpu, nvml.GPU_INSTANCE_PROFILE_1_SLICE, 6)
	clear(gpu)
	out.AfterClear = len(walk(lib))
	out.Placed = placed(gpu)
	clear(gpu)

	v2, ret := gpu.GetGpuInstanceProfileInfoV(nvml.GPU_INSTANCE_PROFILE_2_SLICE).V2()
	must(ret, "profile info, version 2")
	v3, ret := gpu.GetGpuInstanceProfileInfoV(nvml.GPU_INSTANCE_PROFILE_2_SLICE).V3()
	must(ret, "profile info, version 3")
	out.V2Name, out.V3Name = name(v2.Name), name(v3.Name)

	found, err := nvpci.New(nvpci.WithPCIDevicesRoot(pciDevices)).GetGPUs()
	ok(err, "PCI devices")
	for _, d := range found {
		out.PCI = append(out.PCI, d.Address)
	}
	must(api.Shutdown(), "shutdown")
	ok(json.NewEncoder(os.Stdout).Encode(out), "print")
}
