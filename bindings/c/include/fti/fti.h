/* With this folder among the compiler's (-I.../include/fti), programs written for FTI are compiled as they are. */
#include "../fti_compat.h"
