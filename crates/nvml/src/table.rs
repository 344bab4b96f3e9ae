//! The functions of NVML that are answered: their names, and what each parameter is. Both ends of a question read this
//! table: the library in the program to take a call apart, and the monitor to make it.
//!
//! Facts about names, parameters and sizes are from NVML's public reference. Structures that hold pointers, and handles
//! other than those of devices, do not cross a process; functions with them are not here.

/// What a parameter of a function is. Some stand for two parameters of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `nvmlDevice_t`.
    Device,
    /// A number of 32 bits or an enumerator.
    Number,
    /// A number of 64 bits.
    Long,
    /// A string that the caller gives.
    Name,
    /// `nvmlDevice_t *`, which is filled.
    Handle,
    /// A pointer to so many bytes, which are filled.
    Out(u32),
    /// A pointer to a structure that begins with its version, whose low 24 bits are its size, at most this. It is read
    /// and filled.
    Versioned(u32),
    /// `char *` and then its length.
    Text,
    /// A number of 64-bit words, and then a pointer to them, which are filled.
    Words,
    /// A pointer to a number, and one to so many elements of this size: the number says what there is room for, and then
    /// how many there are.
    List(u32),
    /// As [`Kind::List`]; each element begins with the number of a process.
    Processes(u32),
    /// A number, and a pointer to so many elements of this size, which are read and filled.
    Values(u32),
}

impl Kind {
    /// How many parameters of C it stands for.
    pub const fn width(self) -> usize {
        match self {
            Self::Device
            | Self::Number
            | Self::Long
            | Self::Name
            | Self::Handle
            | Self::Out(_)
            | Self::Versioned(_) => 1,
            Self::Text | Self::Words | Self::List(_) | Self::Processes(_) | Self::Values(_) => 2,
        }
    }
}

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// Its parameters.
    pub parameters: &'static [Kind],
}

/// The most parameters of C that a function has.
pub const MOST_PARAMETERS: usize = 6;

/// Hands all functions to a macro, each as `name(Kind, Kind(size), ...);`.
#[macro_export]
macro_rules! for_each_function {
    ($each:ident) => {
        $each! {
            nvmlSystemGetDriverVersion(Text);
            nvmlSystemGetNVMLVersion(Text);
            nvmlSystemGetCudaDriverVersion(Out(4));
            nvmlSystemGetCudaDriverVersion_v2(Out(4));
            nvmlSystemGetDriverBranch(Versioned(84), Number);
            nvmlUnitGetCount(Out(4));
            nvmlDeviceGetCount_v2(Out(4));
            nvmlDeviceGetAttributes_v2(Device, Out(40));
            nvmlDeviceGetHandleByIndex_v2(Number, Handle);
            nvmlDeviceGetHandleBySerial(Name, Handle);
            nvmlDeviceGetHandleByUUID(Name, Handle);
            nvmlDeviceGetHandleByUUIDV(Versioned(52), Handle);
            nvmlDeviceGetHandleByPciBusId_v2(Name, Handle);
            nvmlDeviceGetName(Device, Text);
            nvmlDeviceGetBrand(Device, Out(4));
            nvmlDeviceGetIndex(Device, Out(4));
            nvmlDeviceGetSerial(Device, Text);
            nvmlDeviceGetModuleId(Device, Out(4));
            nvmlDeviceGetC2cModeInfoV(Device, Out(4));
            nvmlDeviceGetMemoryAffinity(Device, Words, Number);
            nvmlDeviceGetCpuAffinityWithinScope(Device, Words, Number);
            nvmlDeviceGetCpuAffinity(Device, Words);
            nvmlDeviceGetNumaNodeId(Device, Out(4));
            nvmlDeviceGetAddressingMode(Device, Versioned(8));
            nvmlDeviceGetRepairStatus(Device, Versioned(12));
            nvmlDeviceGetUnrepairableMemoryFlag_v1(Device, Out(4));
            nvmlDeviceGetTopologyCommonAncestor(Device, Device, Out(4));
            nvmlDeviceGetP2PStatus(Device, Device, Number, Out(4));
            nvmlDeviceGetUUID(Device, Text);
            nvmlDeviceGetMinorNumber(Device, Out(4));
            nvmlDeviceGetBoardPartNumber(Device, Text);
            nvmlDeviceGetInforomVersion(Device, Number, Text);
            nvmlDeviceGetInforomImageVersion(Device, Text);
            nvmlDeviceGetInforomConfigurationChecksum(Device, Out(4));
            nvmlDeviceGetLastBBXFlushTime(Device, Out(8), Out(8));
            nvmlDeviceGetBBXTimeData_v1(Device, Out(4));
            nvmlDeviceGetDisplayMode(Device, Out(4));
            nvmlDeviceGetDisplayActive(Device, Out(4));
            nvmlDeviceGetPersistenceMode(Device, Out(4));
            nvmlDeviceGetPciInfoExt(Device, Versioned(64));
            nvmlDeviceGetPciInfo_v3(Device, Out(68));
            nvmlDeviceGetMaxPcieLinkGeneration(Device, Out(4));
            nvmlDeviceGetGpuMaxPcieLinkGeneration(Device, Out(4));
            nvmlDeviceGetMaxPcieLinkWidth(Device, Out(4));
            nvmlDeviceGetCurrPcieLinkGeneration(Device, Out(4));
            nvmlDeviceGetCurrPcieLinkWidth(Device, Out(4));
            nvmlDeviceGetPcieThroughput(Device, Number, Out(4));
            nvmlDeviceGetPcieReplayCounter(Device, Out(4));
            nvmlDeviceGetClockInfo(Device, Number, Out(4));
            nvmlDeviceGetMaxClockInfo(Device, Number, Out(4));
            nvmlDeviceGetGpcClkVfOffset(Device, Out(4));
            nvmlDeviceGetApplicationsClock(Device, Number, Out(4));
            nvmlDeviceGetDefaultApplicationsClock(Device, Number, Out(4));
            nvmlDeviceGetClock(Device, Number, Number, Out(4));
            nvmlDeviceGetMaxCustomerBoostClock(Device, Number, Out(4));
            nvmlDeviceGetSupportedMemoryClocks(Device, List(4));
            nvmlDeviceGetSupportedGraphicsClocks(Device, Number, List(4));
            nvmlDeviceGetAutoBoostedClocksEnabled(Device, Out(4), Out(4));
            nvmlDeviceGetFanSpeed(Device, Out(4));
            nvmlDeviceGetFanSpeed_v2(Device, Number, Out(4));
            nvmlDeviceGetFanSpeedRPM(Device, Versioned(12));
            nvmlDeviceGetTargetFanSpeed(Device, Number, Out(4));
            nvmlDeviceGetMinMaxFanSpeed(Device, Out(4), Out(4));
            nvmlDeviceGetFanControlPolicy_v2(Device, Number, Out(4));
            nvmlDeviceGetNumFans(Device, Out(4));
            nvmlDeviceGetTemperature(Device, Number, Out(4));
            nvmlDeviceGetCoolerInfo(Device, Versioned(16));
            nvmlDeviceGetTemperatureV(Device, Versioned(12));
            nvmlDeviceGetTemperatureThreshold(Device, Number, Out(4));
            nvmlDeviceGetMarginTemperature(Device, Versioned(8));
            nvmlDeviceGetThermalSettings(Device, Number, Out(64));
            nvmlDeviceGetPerformanceState(Device, Out(4));
            nvmlDeviceGetCurrentClocksEventReasons(Device, Out(8));
            nvmlDeviceGetCurrentClocksThrottleReasons(Device, Out(8));
            nvmlDeviceGetSupportedClocksEventReasons(Device, Out(8));
            nvmlDeviceGetSupportedClocksThrottleReasons(Device, Out(8));
            nvmlDeviceGetPowerState(Device, Out(4));
            nvmlDeviceGetDynamicPstatesInfo(Device, Out(132));
            nvmlDeviceGetMemClkVfOffset(Device, Out(4));
            nvmlDeviceGetMinMaxClockOfPState(Device, Number, Number, Out(4), Out(4));
            nvmlDeviceGetGpcClkMinMaxVfOffset(Device, Out(4), Out(4));
            nvmlDeviceGetMemClkMinMaxVfOffset(Device, Out(4), Out(4));
            nvmlDeviceGetClockOffsets(Device, Versioned(24));
            nvmlDeviceGetPerformanceModes(Device, Versioned(2052));
            nvmlDeviceGetCurrentClockFreqs(Device, Versioned(2052));
            nvmlDeviceGetPowerManagementMode(Device, Out(4));
            nvmlDeviceGetPowerManagementLimit(Device, Out(4));
            nvmlDeviceGetPowerManagementLimitConstraints(Device, Out(4), Out(4));
            nvmlDeviceGetPowerManagementDefaultLimit(Device, Out(4));
            nvmlDeviceGetPowerUsage(Device, Out(4));
            nvmlDeviceGetPowerMizerMode_v1(Device, Out(12));
            nvmlDeviceGetTotalEnergyConsumption(Device, Out(8));
            nvmlDeviceGetEnforcedPowerLimit(Device, Out(4));
            nvmlDeviceGetGpuOperationMode(Device, Out(4), Out(4));
            nvmlDeviceGetMemoryInfo(Device, Out(24));
            nvmlDeviceGetMemoryInfo_v2(Device, Versioned(40));
            nvmlDeviceGetComputeMode(Device, Out(4));
            nvmlDeviceGetCudaComputeCapability(Device, Out(4), Out(4));
            nvmlDeviceGetDramEncryptionMode(Device, Versioned(8), Versioned(8));
            nvmlDeviceGetEccMode(Device, Out(4), Out(4));
            nvmlDeviceGetDefaultEccMode(Device, Out(4));
            nvmlDeviceGetBoardId(Device, Out(4));
            nvmlDeviceGetMultiGpuBoard(Device, Out(4));
            nvmlDeviceGetTotalEccErrors(Device, Number, Number, Out(8));
            nvmlDeviceGetDetailedEccErrors(Device, Number, Number, Out(32));
            nvmlDeviceGetMemoryErrorCounter(Device, Number, Number, Number, Out(8));
            nvmlDeviceGetUtilizationRates(Device, Out(8));
            nvmlDeviceGetEncoderUtilization(Device, Out(4), Out(4));
            nvmlDeviceGetEncoderCapacity(Device, Number, Out(4));
            nvmlDeviceGetEncoderStats(Device, Out(4), Out(4), Out(4));
            nvmlDeviceGetDecoderUtilization(Device, Out(4), Out(4));
            nvmlDeviceGetJpgUtilization(Device, Out(4), Out(4));
            nvmlDeviceGetOfaUtilization(Device, Out(4), Out(4));
            nvmlDeviceGetFBCStats(Device, Out(12));
            nvmlDeviceGetDriverModel_v2(Device, Out(4), Out(4));
            nvmlDeviceGetVbiosVersion(Device, Text);
            nvmlDeviceGetBridgeChipInfo(Device, Out(1028));
            nvmlDeviceGetComputeRunningProcesses_v3(Device, Processes(24));
            nvmlDeviceGetGraphicsRunningProcesses_v3(Device, Processes(24));
            nvmlDeviceGetMPSComputeRunningProcesses_v3(Device, Processes(24));
            nvmlDeviceOnSameBoard(Device, Device, Out(4));
            nvmlDeviceGetAPIRestriction(Device, Number, Out(4));
            nvmlDeviceGetSamples(Device, Number, Long, Out(4), List(16));
            nvmlDeviceGetBAR1MemoryInfo(Device, Out(24));
            nvmlDeviceGetViolationStatus(Device, Number, Out(16));
            nvmlDeviceGetIrqNum(Device, Out(4));
            nvmlDeviceGetNumGpuCores(Device, Out(4));
            nvmlDeviceGetPowerSource(Device, Out(4));
            nvmlDeviceGetMemoryBusWidth(Device, Out(4));
            nvmlDeviceGetPcieLinkMaxSpeed(Device, Out(4));
            nvmlDeviceGetPcieSpeed(Device, Out(4));
            nvmlDeviceGetAdaptiveClockInfoStatus(Device, Out(4));
            nvmlDeviceGetBusType(Device, Out(4));
            nvmlDeviceGetGpuFabricInfo(Device, Out(28));
            nvmlDeviceGetGpuFabricInfoV(Device, Versioned(40));
            nvmlSystemGetConfComputeCapabilities(Out(8));
            nvmlSystemGetConfComputeState(Out(12));
            nvmlDeviceGetConfComputeMemSizeInfo(Device, Out(16));
            nvmlSystemGetConfComputeGpusReadyState(Out(4));
            nvmlDeviceGetConfComputeProtectedMemoryUsage(Device, Out(24));
            nvmlSystemGetConfComputeKeyRotationThresholdInfo(Versioned(16));
            nvmlSystemGetConfComputeSettings(Versioned(20));
            nvmlDeviceGetGspFirmwareVersion(Device, Out(64));
            nvmlDeviceGetGspFirmwareMode(Device, Out(4), Out(4));
            nvmlDeviceGetSramEccErrorStatus(Device, Versioned(104));
            nvmlDeviceGetAccountingMode(Device, Out(4));
            nvmlDeviceGetRetiredPages(Device, Number, List(8));
            nvmlDeviceGetRetiredPagesPendingStatus(Device, Out(4));
            nvmlDeviceGetRemappedRows(Device, Out(4), Out(4), Out(4), Out(4));
            nvmlDeviceGetRowRemapperHistogram(Device, Out(20));
            nvmlDeviceGetArchitecture(Device, Out(4));
            nvmlDeviceGetClkMonStatus(Device, Out(264));
            nvmlDeviceGetPlatformInfo(Device, Versioned(44));
            nvmlDeviceGetPdi(Device, Versioned(16));
            nvmlDeviceGetHostname_v1(Device, Out(64));
            nvmlDeviceGetNvLinkState(Device, Number, Out(4));
            nvmlDeviceGetNvLinkVersion(Device, Number, Out(4));
            nvmlDeviceGetNvLinkCapability(Device, Number, Number, Out(4));
            nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, Number, Out(68));
            nvmlDeviceGetNvLinkErrorCounter(Device, Number, Number, Out(8));
            nvmlDeviceGetNvLinkUtilizationControl(Device, Number, Number, Out(8));
            nvmlDeviceGetNvLinkUtilizationCounter(Device, Number, Number, Out(8), Out(8));
            nvmlDeviceGetNvLinkRemoteDeviceType(Device, Number, Out(4));
            nvmlSystemGetNvlinkBwMode(Out(4));
            nvmlDeviceGetNvlinkSupportedBwModes(Device, Versioned(28));
            nvmlDeviceGetNvlinkBwMode(Device, Versioned(12));
            nvmlDeviceGetNvLinkInfo(Device, Versioned(1612));
            nvmlDeviceGetSupportedEventTypes(Device, Out(8));
            nvmlDeviceGetFieldValues(Device, Values(40));
            nvmlDeviceGetVirtualizationMode(Device, Out(4));
            nvmlDeviceGetMigMode(Device, Out(4), Out(4));
            nvmlDeviceIsMigDeviceHandle(Device, Out(4));
            nvmlDeviceGetGpuInstanceId(Device, Out(4));
            nvmlDeviceGetComputeInstanceId(Device, Out(4));
            nvmlDeviceGetMaxMigDeviceCount(Device, Out(4));
            nvmlGpmQueryDeviceSupport(Device, Versioned(8));
            nvmlDeviceGetCapabilities(Device, Versioned(8));
            nvmlDeviceWorkloadPowerProfileGetProfilesInfo(Device, Versioned(11256));
            nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(Device, Versioned(100));
            nvmlDeviceGetRemappedRows_v2(Device, Out(24));
            nvmlDeviceGetCount(Out(4));
            nvmlDeviceGetHandleByIndex(Number, Handle);
            nvmlDeviceGetHandleByPciBusId(Name, Handle);
            nvmlDeviceGetPciInfo(Device, Out(32));
            nvmlDeviceGetPciInfo_v2(Device, Out(36));
            nvmlDeviceGetNvLinkRemotePciInfo(Device, Number, Out(36));
            nvmlDeviceGetAttributes(Device, Out(40));
            nvmlDeviceGetComputeRunningProcesses(Device, Processes(16));
            nvmlDeviceGetComputeRunningProcesses_v2(Device, Processes(24));
            nvmlDeviceGetGraphicsRunningProcesses(Device, Processes(16));
            nvmlDeviceGetGraphicsRunningProcesses_v2(Device, Processes(24));
            nvmlDeviceGetMPSComputeRunningProcesses(Device, Processes(16));
            nvmlDeviceGetMPSComputeRunningProcesses_v2(Device, Processes(24));
            nvmlDeviceGetDriverModel(Device, Out(4), Out(4));
        }
    };
}

macro_rules! table {
    ($($name:ident($($kind:ident $(($size:literal))?),*);)*) => {
        /// All functions.
        pub static FUNCTIONS: &[Function] = &[$(Function {
            name: stringify!($name),
            parameters: &[$(Kind::$kind $(($size))?),*],
        }),*];
    };
}
for_each_function!(table);

/// The function of that name.
pub fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_there_once_and_fits_the_registers_of_a_call() {
        for (at, function) in FUNCTIONS.iter().enumerate() {
            let width: usize = function.parameters.iter().map(|kind| kind.width()).sum();
            assert!(width <= MOST_PARAMETERS, "{}: {width}", function.name);
            let first = FUNCTIONS.iter().position(|it| it.name == function.name);
            assert_eq!(first, Some(at), "{} is there twice", function.name);
        }
    }
}
