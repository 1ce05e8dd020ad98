/* The memory of a module's variables, as far as the image shows it before the driver loads it. */
#ifndef IMAGE_H
#define IMAGE_H

#include <stdint.h>

/* Of an ELF file, PTX, or a fat binary of them in memory; 0 if it is not known. Never more than the driver will take. */
uint64_t image_variables(const void *image);

/* Of a file. */
uint64_t image_file_variables(const char *path);

#endif
