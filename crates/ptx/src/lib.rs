//! PTX: parser, syntax tree, printer, analyses; and the fat binary container it travels in.
