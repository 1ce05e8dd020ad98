/* The memory that the variables of a module take, as far as it can be read in the image before the driver loads it. */
#ifndef IMAGE_H
#define IMAGE_H

#include <stdint.h>

/* Of an ELF file, PTX, or a fat binary of them in memory; 0 if it is not known. Never more than the driver will take. */
uint64_t image_variables(const void *image);

/* Of a file. */
uint64_t image_file_variables(const char *path);

#endif
