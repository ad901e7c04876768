// A fake libcuda.so.1 that loads any kernel and runs none, so that cuDNN can plan work for an absent GPU.
// Functions that planning does not need fail.
// build: in fake_driver
#include <cuda.h>

extern "C" {

int fake_driver_kernels = 0;  // kernels requested so far

CUresult cuInit(unsigned int) {
    return CUDA_ERROR_NO_DEVICE;  // no GPU for other callers
}
CUresult cuDriverGetVersion(int* version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}
CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned int,
                           CUlibraryOption*, void**, unsigned int) {
    static int loaded;
    *library = reinterpret_cast<CUlibrary>(&loaded);
    return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary) {
    return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char*) {
    *kernel = reinterpret_cast<CUkernel>(library);
    ++fake_driver_kernels;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "of the fake driver";
    return CUDA_SUCCESS;
}

// Functions that cuDNN looks up but does not call.
#define UNUSED_FUNCTION(name)            \
    CUresult name##_unused() asm(#name); \
    CUresult name##_unused() {           \
        return CUDA_ERROR_NOT_SUPPORTED; \
    }
UNUSED_FUNCTION(cuCtxGetCurrent)
UNUSED_FUNCTION(cuCtxGetDevice)
UNUSED_FUNCTION(cuCtxGetLimit)
UNUSED_FUNCTION(cuCtxPopCurrent)
UNUSED_FUNCTION(cuCtxPushCurrent)
UNUSED_FUNCTION(cuDeviceGet)
UNUSED_FUNCTION(cuDeviceGetAttribute)
UNUSED_FUNCTION(cuDeviceGetCount)
UNUSED_FUNCTION(cuDevicePrimaryCtxRelease)
UNUSED_FUNCTION(cuDevicePrimaryCtxReset)
UNUSED_FUNCTION(cuDevicePrimaryCtxRetain)
UNUSED_FUNCTION(cuFuncGetAttribute)
UNUSED_FUNCTION(cuFuncSetAttribute)
UNUSED_FUNCTION(cuGetErrorName)
UNUSED_FUNCTION(cuGetExportTable)
UNUSED_FUNCTION(cuGetProcAddress_v2)
UNUSED_FUNCTION(cuKernelGetAttribute)
UNUSED_FUNCTION(cuKernelSetAttribute)
UNUSED_FUNCTION(cuLaunchCooperativeKernel)
UNUSED_FUNCTION(cuLaunchKernel)
UNUSED_FUNCTION(cuLaunchKernelEx)
UNUSED_FUNCTION(cuLibraryLoadFromFile)
UNUSED_FUNCTION(cuLinkAddData)
UNUSED_FUNCTION(cuLinkAddData_v2)
UNUSED_FUNCTION(cuLinkAddFile_v2)
UNUSED_FUNCTION(cuLinkComplete)
UNUSED_FUNCTION(cuLinkCreate)
UNUSED_FUNCTION(cuLinkCreate_v2)
UNUSED_FUNCTION(cuLinkDestroy)
UNUSED_FUNCTION(cuMemcpyDtoH_v2)
UNUSED_FUNCTION(cuModuleGetFunction)
UNUSED_FUNCTION(cuModuleGetGlobal_v2)
UNUSED_FUNCTION(cuModuleLoadData)
UNUSED_FUNCTION(cuModuleLoadDataEx)
UNUSED_FUNCTION(cuModuleLoadFatBinary)
UNUSED_FUNCTION(cuModuleUnload)
UNUSED_FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessor)
UNUSED_FUNCTION(cuOccupancyMaxPotentialClusterSize)
UNUSED_FUNCTION(cuStreamGetCtx)
UNUSED_FUNCTION(cuStreamSynchronize)
UNUSED_FUNCTION(cuTensorMapEncodeTiled)

}  // extern "C"
